"""Licences: which words and texts are permissive."""

import pytest

from draft_model.corpus.licences import OWN, is_permissive, licence_of_text, read_licence
from draft_model.corpus.readers import licence_of_metadata

APACHE = "Apache License Version 2.0, January 2004"
BSD = "Redistribution and use in source and binary forms, with or without modification, are permitted provided that"
MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy"
MIT_CLASSIFIER = ["License :: OSI Approved :: MIT License", "Programming Language :: Python"]


@pytest.mark.parametrize(
    ("licence", "is_fine"),
    [
        ("MIT", True),
        ("apache-2.0", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Commons-Clause", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND BSD-3-Clause", False),
        ("unknown", False),
        ("", False),
        (OWN, True),
    ],
)
def test_permissive_licences_alone_are_fine(licence: str, is_fine: bool) -> None:
    assert is_permissive(licence) is is_fine


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("MIT License", "MIT"),
        ("BSD License", "BSD-3-Clause"),
        ("Apache Software License", "Apache-2.0"),
        ("GNU Lesser General Public License v3 (LGPLv3)", "GNU Lesser General Public License v3 (LGPLv3)"),
        ("The Unlicense (Unlicense)", "Unlicense"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("BSD-derived (http://www.repoze.org/LICENSE.txt)", "BSD-3-Clause"),
        ('BSD 3-Clause "New" or "Revised" License', "BSD-3-Clause"),
        ("Apache License, Version 2.0", "Apache-2.0"),
    ],
)
def test_the_licence_fields_of_packages_are_read_as_names(said: str, meant: str) -> None:
    assert read_licence(said) == meant


@pytest.mark.parametrize(
    "said",
    [
        "BSD-4-Clause", "bsd-4-clause", "BSD-4-Clause License", "4-Clause BSD License", "Original BSD",
        "BSD with advertising", "BSD-Protection", "BSD-3-Clause-No-Nuclear-License", "BSD-3-Clause-Attribution",
        "Apache-1.1", "Apache License 1.1", "Apache License, Version 1", "Apache-2.0 with Commons Clause",
        "MIT + Commons-Clause", "BUSL-1.1, Apache-2.0 from 2030", "BSL 1.1 (Apache 2.0 after four years)",
        "SSPL; parts are MIT", "Elastic License 2.0, clients Apache", "FSL-1.1-MIT", "MIT-advertising",
        "MIT (non-commercial)", "MIT, free for non-commercial use", "MIT, noncommercial", "BSD, non commercial use",
        "Apache 2.0 for non-commercial use", "MIT OR Apache-2.0 for research", "MIT License (research-only)",
        "MIT, personal use", "MIT 非商用", "Modified MIT License", "MIT-derived", "Proprietary, bundles MIT code",
        "Llama 3 Community License; code MIT", "CDDL 1.0, MIT", "EUPL 1.2; parts MIT", "GFDL/MIT", "MIT and CeCILL-C",
        "OpenRAIL++-M (MIT code)", "https://mit.edu/licence",
    ],
)  # fmt: skip
def test_a_text_near_a_permissive_licence_is_not_taken_for_it(said: str) -> None:
    assert read_licence(said) == said
    assert not is_permissive(said)


@pytest.mark.parametrize(
    "text",
    [
        f"Business Source License 1.1\nChange License: {APACHE}",
        f'"Commons Clause" License Condition v1.0\n{APACHE}',
        f"Server Side Public License\n{APACHE}",
        f"Elastic License 2.0. Clients: {APACHE}",
        f"Functional Source License, Version 1.1. Grant of future licence: {APACHE}",
        f"{BSD}: 3. All advertising materials mentioning features must say so. 4. Neither the name",
        f"{BSD}: The documentation must include the following acknowledgment: this product includes software of",
        f"{BSD}: You acknowledge that this software is not licensed for any nuclear facility. Neither the name",
        f"{MIT}. The Software shall be used for Good, not Evil.",
        "Redistribution and use in source and binary forms are permitted for non-commercial purposes",
        f"{MIT}, for research purposes only",
        f"{MIT}. Parts are under the GNU Library General Public License",
        f"{MIT}. It may not be used for commercial purposes",
        f"{MIT}. Commercial use is prohibited.",
        "Permission to use, copy, modify, and distribute this software for any purpose other than commercial",
        f"End User Licence Agreement. You may not copy it. It contains what others wrote. {MIT}",
        f"Our agreement. {'It is between us. ' * 60} It contains other software: {MIT}",
        f"GNU GPL v3; parts: {MIT}",
        f"Eclipse Public License - v 2.0. Parts: {MIT}",
        f"COMMON DEVELOPMENT AND DISTRIBUTION LICENSE. Parts: {MIT}",
        f"European Union Public Licence v. 1.2. Parts: {MIT}",
        f"Attribution-NonCommercial 4.0 International. Parts: {MIT}",
        f"CC BY-SA 4.0, parts: {MIT}",
    ],
)
def test_a_text_that_restricts_is_no_permissive_one(text: str) -> None:
    assert licence_of_text(text) == ""
    assert not is_permissive(licence_of_metadata({"license": text}))


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (APACHE, "Apache-2.0"),
        (MIT.replace(" of ", " of\n"), "MIT"),
        (f"{BSD}: Neither the name of it may be used to endorse or promote products", "BSD-3-Clause"),
        (f"{BSD} the following conditions are met", "BSD-2-Clause"),
        (f"{MIT}. The name of it shall not be used in advertising or otherwise to promote", "MIT"),
        ("This is free and unencumbered software, for any purpose, commercial or non-commercial", "Unlicense"),
        ('Ours. Licensed under the Apache License, Version 2.0 (the "License"); you may not use this', "Apache-2.0"),
        (f"The licence. {'By somebody. ' * 50} {MIT}. {'As is. ' * 200} Parts: {APACHE}", "MIT"),
    ],
)
def test_each_permissive_text_is_identified(text: str, licence: str) -> None:
    assert licence_of_text(text) == licence


def test_metadata_says_the_licence_by_expression_then_classifiers_then_words() -> None:
    assert licence_of_metadata({"license_expression": "ISC", "classifier": MIT_CLASSIFIER}) == "ISC"
    assert licence_of_metadata({"classifier": MIT_CLASSIFIER, "license": "odd"}) == "MIT"
    assert licence_of_metadata({"license": "MIT OR BUSL-1.1", "classifier": MIT_CLASSIFIER}) == "MIT"
    assert licence_of_metadata({"license": "BSD"}) == "BSD-3-Clause"
    assert licence_of_metadata({}) == "unknown"


@pytest.mark.parametrize(
    "said",
    [
        "GPLv3",
        f"GNU AGPL. {MIT}",
        "MIT + Commons Clause",
    ],
)
def test_a_restriction_in_the_licence_field_outweighs_the_classifiers(said: str) -> None:
    assert licence_of_metadata({"license": said, "classifier": MIT_CLASSIFIER}) == "unknown"


def test_a_text_that_lists_bundled_licences_leaves_the_decision_to_the_classifiers() -> None:
    bundled = "GNU General Public License: only occasionally and noncommercially; make it effectively proprietary"
    said = f"{BSD} the following conditions are met. {'As is. ' * 200} Bundled: {bundled}"
    classifier = ["License :: OSI Approved :: BSD License"]
    assert licence_of_metadata({"license": said, "classifier": classifier}) == "BSD-3-Clause"
    assert licence_of_metadata({"license": said}) == "unknown"
