"""The cache salts around a time without a draft model."""

from completion_server.engine.interface import EngineInfo, constant_lookup
from completion_server.engine.speculation_control import SEPARATED, EngineSpeculation

ON = constant_lookup(2, 4)


def control(draft_model: str = "d") -> EngineSpeculation:
    return EngineSpeculation(EngineInfo("m", 1024, draft_model, 2, 4, ON))


def test_only_switching_on_separates_prompts() -> None:
    under_test = control()
    under_test.set_lookup(ON)
    assert under_test.salt("ada") == "ada"
    under_test.switch_off()
    under_test.switch_off()
    assert under_test.salt("ada") == "ada"
    under_test.set_lookup(ON)
    first = under_test.salt("ada")
    under_test.set_lookup(constant_lookup(0, 4))
    assert under_test.salt("ada") == first != "ada"
    under_test.switch_off()
    assert under_test.salt("ada") == first
    under_test.set_lookup(ON)
    assert under_test.salt("ada") not in {first, "ada"}
    assert under_test.salt("ada") != under_test.salt("bob")


def test_salts_that_are_separated_already_stay_and_no_tenants_name_begins_so() -> None:
    under_test = control()
    under_test.switch_off()
    under_test.set_lookup(ON)
    assert under_test.salt(SEPARATED + "ada") == SEPARATED + "ada"
    assert SEPARATED.startswith("\0"), "metadata has no NUL character"


def test_drafts_that_are_copied_from_the_prompt_separate_nothing() -> None:
    under_test = control("ngram")
    under_test.switch_off()
    under_test.set_lookup(ON)
    assert under_test.salt("ada") == "ada"
