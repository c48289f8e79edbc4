"""Decides whether a licence is permissive: it allows training a model and publishing it under another licence.

A package's licence is read as an SPDX expression. `OR` needs one permissive side, `AND` all; an expression with
parentheses needs all, which is the safe choice. A permissive licence with added conditions is not permissive, nor is
one that becomes permissive in some years.

A name must be a known one. A text is refused for restrictions, then for copyleft, and must begin with a known grant.
Doubtful licences are refused: the loss of a file costs nothing.
"""

import re
from collections.abc import Mapping

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

PERMISSIVE = frozenset(
    {
        "0BSD", "AFL-3.0", "APACHE-2.0", "BLUEOAK-1.0.0", "BSD-1-CLAUSE", "BSD-2-CLAUSE", "BSD-2-CLAUSE-FREEBSD",
        "BSD-2-CLAUSE-NETBSD", "BSD-2-CLAUSE-PATENT", "BSD-2-CLAUSE-VIEWS", "BSD-3-CLAUSE", "BSD-3-CLAUSE-CLEAR",
        "BSL-1.0", "CC0-1.0", "CNRI-PYTHON", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "NCSA", "POSTGRESQL", "PSF-2.0",
        "PYTHON-2.0", "PYTHON-2.0.1", "UNLICENSE", "UPL-1.0", "X11", "ZLIB",
    }
)  # fmt: skip
OWN = "own"
"""The licence of a user's own folder that has no licence file."""

START = 1_000
"""Characters of a text in which its own grant begins, after title and authors; later text may be quotations."""

_RESTRICTED = re.compile(
    # Source-available licences, which name the permissive licence that they are based on or become.
    r"business source|\bbusl\b|\bbsl[- ]1\.1|functional source|\bfsl-1|commons[- ]clause|server[- ]side public|\bsspl\b"
    r"|elastic[- ]license|polyform|sustainable use|good, not evil"
    # Proprietary packages that bundle permissive code; not the GPL's own words, which lists of bundled code quote.
    r"|(?<!including )(?<!effectively )proprietary(?! (programs|applications))|end[- ]user licen[cs]e|\beula\b"
    r"|\bmay not (be )?(copy|copied|modif|(re)?distribut|reproduc|sell|sold|sublicens|reverse|decompil)"
    # Conditions in texts that otherwise read like BSD or MIT. "Advertising" alone is in the permissive X11 and HPND.
    r"|advertising materials|no[- ]nuclear|nuclear facilit"
    r"|(must|shall) (display|include|retain) the following acknowledge?ment"
    # Not the Unlicense's "commercial or non-commercial", nor the GPL's "only occasionally and noncommercially".
    r"|(?<!commercial or )(?<!commercial and )(?<!occasionally and )non[- ]?commercial"
    r"|\b(not?|never|other than|except|excluding|prohibit\w*|forbid\w*)\b[^.]{0,60}\bcommercial"
    r"|\bcommercial (use|usage|purposes?|licen[cs]es?)\b[^.]{0,40}\b(is|are|requires?|contact|obtain|purchase)\b"
    r"|(only|solely|permitted) for ([\w-]+,? ){0,3}(academic|research|educational|evaluation)"
    r"|\b(academic|research|educational|evaluation|personal|internal|home|non-?production)[- ](use|purposes?|only)\b"
    r"|not[- ]for[- ]profit|non-?profit (use|purposes?|only)",
    re.IGNORECASE,
)
_COPYLEFT = re.compile(
    r"\bpublic licen[cs]e|\bgnu\b|common development and distribution|open software licen[cs]e"
    r"|free documentation licen[cs]e|share-?alike|no-?deriv|\bcc[- ]by[- ](nc|nd|sa)|responsible ai licen[cs]e"
    r"|\b([al]?gpl|mpl|epl|cddl|eupl|osl|cecill|gfdl|(open)?rail)(v?\d|\b)",
    re.IGNORECASE,
)
_CLASSIFIERS: Mapping[str, str] = {
    "Academic Free License (AFL)": "AFL-3.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "Blue Oak Model License (BlueOak-1.0.0)": "BlueOak-1.0.0",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "CMU License (MIT-CMU)": "MIT-CMU",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "PostgreSQL License": "PostgreSQL",
    "Python License (CNRI Python License)": "CNRI-Python",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Universal Permissive License (UPL)": "UPL-1.0",
    "University of Illinois/NCSA Open Source License": "NCSA",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "zlib/libpng License": "Zlib",
}
"""PyPI's classifiers of permissive licences."""

_SPELLINGS: Mapping[str, str] = {
    "Apache-2.0": "apache, apache 2, apache 2.0, apache version 2.0, asl 2.0",
    "MIT": "mit, mit expat, expat, mit mit",
    "BSD-2-Clause": "simplified bsd, 2 clause bsd, bsd 2 clause, freebsd",
    "BSD-3-Clause": "bsd, new bsd, modified bsd, revised bsd, 3 clause bsd, bsd 3 clause, bsd style, bsd derived, "
    "bsd 3 clause new or revised",
    "PSF-2.0": "psf, psfl, python foundation",
    "ISC": "isc, iscl",
    "Unlicense": "unlicense",
    "CC0-1.0": "cc0",
    "Zlib": "zlib",
}
_NAMES = {name: spdx for spdx, names in _SPELLINGS.items() for name in names.split(", ")}
"""Licences by a package's own words for them, in lower case and without the words for "licence". Any further word may
be a condition, or another licence."""

_TEXTS: tuple[tuple[str, str], ...] = (
    (r"apache license,? version 2\.0,? january 2004", "Apache-2.0"),
    (r"licensed under the apache license, version 2\.0 \(the .license.\);? you may not use", "Apache-2.0"),
    (r"permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
    (r"redistribution and use in source and binary forms.*neither the name", "BSD-3-Clause"),
    (r"redistribution and use in source and binary forms", "BSD-2-Clause"),
    (r"permission to use, copy, modify,? and(/or)? distribute this software for any purpose", "ISC"),
    (r"this is free and unencumbered software", "Unlicense"),
)
_NO_NAMES = frozenset({"", "a", "the", "licence", "license", "licensed", "under", "software"})
_SPDX_NAME = re.compile(r"[\w.+-]+(\s+WITH\s+[\w.+-]+)?")


def is_permissive(licence: str) -> bool:
    """Whether an SPDX expression, or `OWN`, is permissive; unknown licences are not."""
    if licence == OWN:
        return True
    plain = re.sub(r"[()]", " ", licence)
    choices = [[name.strip() for name in re.split(r"\bAND\b", choice)] for choice in re.split(r"\bOR\b", plain)]
    if not all(_SPDX_NAME.fullmatch(name) for choice in choices for name in choice):
        return False  # Not an expression: its further words may be conditions on all of it.
    return (all if "(" in licence else any)(all(map(_is_known, choice)) for choice in choices)


def _is_known(name: str) -> bool:
    # SPDX's exceptions only ever allow more; "WITH Commons-Clause" is none of them.
    return re.sub(r"\s+WITH\s+[\w.-]*exception[\w.-]*$", "", name).upper() in PERMISSIVE


def read_licence(said: str) -> str:
    """The SPDX expression for a package's words, such as "MIT License"; the words themselves if there is none."""
    said = " ".join(said.split())
    if said in _CLASSIFIERS:
        return _CLASSIFIERS[said]
    try:
        expression: str = canonicalize_license_expression(said)  # With its operators in upper case.
    except InvalidLicenseExpression:
        expression = ""
    if is_permissive(said) or is_permissive(expression):
        return said if is_permissive(said) else expression
    words = re.split(r"[\s,;()\"'_-]+", re.sub(r"https?://\S+", "", said.lower()))
    name = " ".join(word.rstrip(".") for word in words if word.rstrip(".") not in _NO_NAMES)
    return _NAMES.get(name, said)


def licence_of_text(text: str) -> str:
    """The SPDX name of a licence file's text; "" if it is none of the common texts."""
    flat = " ".join(text.lower().split())
    if is_restricted(flat) or is_copyleft(flat):
        return ""
    found = ((re.search(pattern, flat), spdx) for pattern, spdx in _TEXTS)
    return next((spdx for match, spdx in found if match and match.start() < START), "")


def is_restricted(text: str) -> bool:
    """Whether a name or a text has a condition that no permissive licence has."""
    return _RESTRICTED.search(" ".join(text.split())) is not None


def is_copyleft(text: str) -> bool:
    """Whether a name or a text mentions a copyleft licence."""
    return _COPYLEFT.search(" ".join(text.split())) is not None
