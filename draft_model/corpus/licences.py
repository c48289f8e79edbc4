"""Whether a licence lets a model be trained and given away under a licence of one's own: the permissive ones do.

What packages say is read as an SPDX expression. `OR` needs one permissive side, `AND` all; with parentheses all, which
is on the safe side.
"""

import re

PERMISSIVE = frozenset(
    {
        "0BSD", "AFL-3.0", "APACHE-2.0", "BLUEOAK-1.0.0", "BSD-2-CLAUSE", "BSD-2-CLAUSE-PATENT", "BSD-3-CLAUSE",
        "BSD-3-CLAUSE-CLEAR", "BSL-1.0", "CC0-1.0", "CNRI-PYTHON", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "NCSA",
        "POSTGRESQL", "PSF-2.0", "PYTHON-2.0", "PYTHON-2.0.1", "UNLICENSE", "UPL-1.0", "X11", "ZLIB",
    }
)  # fmt: skip
OWN = "own"
"""The licence of folders that a person names as theirs and that have no licence file."""

_NAMES: tuple[tuple[str, str], ...] = (
    # The first pattern that is found decides, so what is copyleft or public domain in part comes first.
    (r"\b(a|l)?gpl|gnu |copyleft|mozilla|\bmpl|eclipse|\bepl|creative commons.*(nc|sa)", ""),
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
    (r"gnu (affero |lesser )?general public license|mozilla public license", ""),
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
    plain = re.sub(r"\s+WITH\s+.*", "", name.strip())
    return plain.upper() in PERMISSIVE


def read_licence(said: str) -> str:
    """The SPDX expression that a package's words mean, such as "MIT License"; the words where they mean none."""
    said = " ".join(said.split())
    if is_permissive(said):
        return said
    for pattern, spdx in _NAMES:
        if re.search(pattern, said, re.IGNORECASE):
            return spdx or said
    return said


def licence_of_text(text: str) -> str:
    """The SPDX name of a licence file's text, "" when it is none of the common ones."""
    flat = " ".join(text.lower().split())
    return next((spdx for pattern, spdx in _TEXTS if re.search(pattern, flat)), "")
