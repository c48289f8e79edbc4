"""Whether a licence lets a model be trained and given away under a licence of one's own: the permissive ones do.

What packages say is read as an SPDX expression. `OR` needs one permissive side, `AND` all; with parentheses all, which
is on the safe side. What adds conditions to a permissive licence, or turns into one in some years, is not permissive.
"""

import re

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
"""The licence of folders that a person names as theirs and that have no licence file."""

_RESTRICTED = re.compile(
    # Source-available ones, which name the permissive licence that they are built on or turn into.
    r"business source|\bbusl\b|\bbsl[- ]1\.1|functional source|\bfsl-1|commons[- ]clause|server[- ]side public|\bsspl\b"
    r"|elastic[- ]license|polyform|sustainable use|good, not evil"
    # Conditions in what otherwise reads like BSD or MIT. "Advertising" alone is in the permissive X11 and HPND.
    r"|advertising materials|no[- ]nuclear|nuclear facilit"
    r"|(must|shall) (display|include|retain) the following acknowledge?ment"
    # Not "commercial or non-commercial", which the Unlicense says.
    r"|(only|solely|permitted) for ([\w-]+,? ){0,3}(non-?commercial|academic|research|educational|evaluation)"
    r"|(non-?commercial|academic|research|educational|evaluation) (use|purposes?) only",
    re.IGNORECASE,
)
_COPYLEFT = re.compile(r"gnu (affero |lesser |library )?general public license|mozilla public license", re.IGNORECASE)
_SPDX_LIKE = re.compile(r"\w+(?:[.-]\w+)+")
"""Names in one word are left to `_NAMES`: SPDX has some that are ordinary words, such as "Fair" and "Ruby"."""

_NAMES: tuple[tuple[str, str], ...] = (
    # The first pattern that is found decides, so what is copyleft or public domain in part comes first.
    (r"\b(a|l)?gpl|gnu |copyleft|mozilla|\bmpl|eclipse|\bepl|creative commons.*(nc|sa)", ""),
    (r"apache\D*1\.[01]\b|with (the )?advertising|\b(4|four)[- ]clause", ""),
    (r"\b(original|old) bsd|bsd[- ](4|four|original|old|protection)", ""),
    (r"apache", "Apache-2.0"),
    (r"mit[- ]cmu|historical permission", "MIT-CMU"),
    (r"\bmit\b", "MIT"),
    (r"(2|two|simplified|freebsd)[- ]?(clause)?.*bsd|bsd[- ](2|two|simplified)", "BSD-2-Clause"),
    (r"\bbsd|new bsd|3-clause bsd", "BSD-3-Clause"),
    (r"python software foundation|\bpsf", "PSF-2.0"),
    (r"\bisc\b", "ISC"),
    (r"\bunlicense\b", "Unlicense"),  # "UNLICENSED" is npm's word for the opposite.
    (r"\bcc0", "CC0-1.0"),
    (r"\bzlib", "Zlib"),
)
_TEXTS: tuple[tuple[str, str], ...] = (
    (r"apache license,?\s+version 2\.0", "Apache-2.0"),
    (r"permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
    (r"redistribution and use in source and binary forms.*neither the name", "BSD-3-Clause"),
    (r"redistribution and use in source and binary forms", "BSD-2-Clause"),
    (r"permission to use, copy, modify,? and(/or)? distribute this software for any purpose", "ISC"),
    (r"this is free and unencumbered software", "Unlicense"),
)


def is_permissive(licence: str) -> bool:
    """Whether an SPDX expression, or `OWN`, allows it; what is not known does not."""
    if licence == OWN:
        return True
    if "(" in licence:
        return all(_is_known(name) for name in re.split(r"\bAND\b|\bOR\b", licence.replace("(", "").replace(")", "")))
    return any(all(_is_known(name) for name in re.split(r"\bAND\b", choice)) for choice in re.split(r"\bOR\b", licence))


def _is_known(name: str) -> bool:
    # SPDX's exceptions only ever allow more; "WITH Commons-Clause" is none of them.
    plain = re.sub(r"\s+WITH\s+[\w.-]*exception[\w.-]*$", "", name.strip())
    return plain.upper() in PERMISSIVE


def read_licence(said: str) -> str:
    """The SPDX expression that a package's words mean, such as "MIT License"; the words where they mean none."""
    said = " ".join(said.split())
    expression = _spdx(said)
    if not is_permissive(said) and is_permissive(expression):
        return expression  # With its operators in upper case.
    if is_permissive(said) or is_restricted(said) or any(map(_is_another, _SPDX_LIKE.findall(said))):
        return said
    for pattern, spdx in _NAMES:
        if re.search(pattern, said, re.IGNORECASE):
            return spdx or said
    return said


def licence_of_text(text: str) -> str:
    """The SPDX name of a licence file's text, "" when it is none of the common ones."""
    flat = " ".join(text.lower().split())
    if is_restricted(flat) or is_copyleft(flat):
        return ""
    return next((spdx for pattern, spdx in _TEXTS if re.search(pattern, flat)), "")


def is_restricted(text: str) -> bool:
    """Whether words or a whole text have a condition that no permissive licence has, whatever else they say."""
    return _RESTRICTED.search(" ".join(text.split())) is not None


def is_copyleft(text: str) -> bool:
    """Whether a text names one of the common licences that ask for the same licence."""
    return _COPYLEFT.search(" ".join(text.split())) is not None


def _is_another(name: str) -> bool:
    """Whether SPDX knows the name, as that of a licence that is not permissive."""
    known = _spdx(name)
    return known != "" and not _is_known(known)


def _spdx(said: str) -> str:
    """An SPDX expression as SPDX writes it, "" for what is none."""
    try:
        return canonicalize_license_expression(said)
    except InvalidLicenseExpression:
        return ""
