from __future__ import annotations

import pytest

from workers.ingest.quality import better, judge

ENGLISH = "The Board met on 14 April and agreed the budget for the coming year, subject to the auditor's report. " * 3
GERMAN = "Donaudampfschifffahrtsgesellschaft und Rechtsschutzversicherungsgesellschaften stehen selten so dicht. " * 3
CHINESE = "浅谈校长的魅力。山西省闻喜县诚镇初中，李新录。学校管理是一门艺术，也是一门科学，需要不断地学习。" * 3
MIXED = (
    "在 restoremathleading 为 true 时，使用 \\SetMathEnvironmentSinglespace 命令。数学公式的行距被恢复成字号的 1.2 倍。"
    * 4
)
NUMBERS = "2019  120  3.5\n2020  135  4.1\n2021  150  4.4\n" * 8
CODE = "ATGCGTACCTGA 0x1F4C SKU-99182-X BZ7714\n" * 6
ARABIC = "مرحبا بالعالم. هذا نص عربي طويل بما يكفي للقياس، وفيه كلمة English واحدة فقط." * 3
MATHS = "∀x ∈ ℝ: ∫₀^∞ e^{−αx} dx = 1/α, where α > 0 and β ≠ γ; cf. Σᵢ λᵢ φᵢ(x) = ψ(x). " * 3


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, CHINESE, MIXED, NUMBERS, CODE, ARABIC, MATHS, "Hi", "17"])
def test_real_text_is_not_rubbish(text: str):
    assert not judge(text).is_rubbish


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\ufffd" * 30 + " word", "characters without a meaning"),
        ("\ue012\ue013\ue077 " * 20, "characters without a meaning"),
        ("(cid:12)(cid:99)(cid:3) " * 10, "characters without a meaning"),
        ("/g936/g1007/g1004/g1004/g3/g296/g381/g396/g3/g1005\n/G43/GED/G2E/G1F", "characters without a meaning"),
        ("䴀甀氀琀椀挀漀氀漀爀䈀氀愀挀欀", "the two bytes of each character are swapped"),
        ("0SVIQ\x04MTWYQ\x04HSPSV\x04WMX\x04EQIX", "control characters instead of letters"),
        ("".join(ENGLISH.split()).replace(",", "").replace(".", "").replace("'", ""), "word spaces are missing"),
        ("\n".join("".join(ENGLISH.split())), "one character a line"),
        ("7KLV LV WKH WH[W RI D SDJH ZKRVH JOBSKV DUH QXPEHUV " * 2, "glyph numbers instead of letters"),
        ("ǡǼǱǺ ǓǯǯǱǿǿ ǡǼǱǺ", "glyph numbers instead of letters"),
        ("ɹং\u0378Θݱচ၊ఆේԐਓӉಁෳ߹ෆࣦỜঌཅ" * 8, "a mix of scripts that no language has"),
    ],
)
def test_each_kind_of_rubbish_is_told_and_named(text: str, reason: str):
    quality = judge(text)
    assert quality.is_rubbish
    assert quality.reason == reason


def test_an_empty_text_is_empty_not_rubbish():
    assert judge(" \n ").chars == 0
    assert not judge("").is_rubbish


def test_the_better_text_is_the_less_rubbish_one_then_the_clearly_longer_one():
    text, rubbish, empty = judge(ENGLISH), judge("\ufffd" * 40), judge("")
    assert better(rubbish, text)
    assert not better(text, rubbish)
    assert better(empty, text)
    assert not better(text, empty)
    assert not better(text, judge(ENGLISH + "a few more"))
    assert better(text, judge(ENGLISH * 2))


def test_words_that_were_taken_apart_lose_to_whole_ones_and_formulas_do_not():
    apart = judge(
        "9 Nort h Buon a Vist a Driv e Th e Metropoli s Towe r Singapor e America n Presiden t Line s Lt d " * 3
    )
    whole = judge("9 North Buona Vista Drive The Metropolis Tower Singapore American President Lines Ltd " * 3)
    assert apart.has_loose_letters
    assert not apart.is_rubbish
    assert better(apart, whole)
    assert not better(whole, apart)
    assert not judge(ENGLISH).has_loose_letters
