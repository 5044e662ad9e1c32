"""Text of every kind a document may hold, made from a seed."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

_SENTENCES = (
    "The pump's warranty isn't void; it's 24 months, they'll say, and we've paid £1,299.50 on 2026-11-30.",
    "Der Vertrag endet am 31. Dezember 2027, außer die Verlängerung wird gemäß § 12 Abs. 3 vereinbart – „sofort“.",
    "L'été dernier, où l'œuvre fut montrée, coûtait déjà 3 500 €; n'est-ce pas naïf ?",
    "El año pasado ¿cuántas señales había? ¡Muchísimas! Ñandú, pingüino, corazón.",
    "Съешь ещё этих мягких французских булок, да выпей же чаю №5.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τί ἐστιν;",
    "合同自2026年11月30日起生效，总金额为人民币1,234,567.89元整。「保密」义务持续三年。",
    "契約は２０２６年から有効です。ｶﾀｶﾅとひらがな、「括弧」も。",
    "계약은 2026년 11월 30일부터 유효하며 총 금액은 1,234원입니다.",
    "يبدأ العقد في ٣٠ نوفمبر ٢٠٢٦ وينتهي بعد سنتين؟ نعم، بالتأكيد.",
    "החוזה תקף משנת 2026 ועד 2028, כולל מע״מ.",
    "अनुबंध ३० नवंबर २०२६ से प्रभावी है। क़ानून, ज़रूरत, श्रीमान्।",
    "สัญญามีผลตั้งแต่วันที่ ๓๐ พฤศจิกายน ๒๕๖๙ เป็นต้นไป",
    "Hợp đồng có hiệu lực từ ngày 30 tháng 11; Đặc biệt, khuyến mãi.",
    "ქართული ენა, հայերեն լեզու, አማርኛ ቋንቋ, မြန်မာဘာသာ, ភាសាខ្មែរ, བོད་ཡིག",
    "def total(rows: list[dict[str, int]]) -> int:\n    return sum(r['n'] for r in rows if r.get('n', 0) >= 10)  # why?\n",
    'for(int i=0;i<10;++i){printf("%d\\t%s\\n",i,names[i]);}\n\t\t/* block */\n#define MAX(a,b) ((a)>(b)?(a):(b))\n',
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x <> 'it''s' GROUP BY 1 HAVING COUNT(*) > 3;\n",
    '{"key": [1, 2.5e-10, null, true], "nested": {"a\\u00e9": "\\ud83d\\ude00"}}\n',
    "| Item | Qty | Price |\n|------|----:|------:|\n| Bolt M8×40 | 1200 | 0.08 |\n",
    "Table of contents .................................... 17\n1.2.3.4 Scope ............. 18\n\f\n",
    "https://example.org/a/b?c=d%20e&f=#g user.name+tag@example.org C:\\Temp\\x ../../etc",
    "E = mc², ∀x∈ℝ: x² ≥ 0, ∑ᵢ₌₁ⁿ i = n(n+1)/2, H₂O → 2H⁺ + O²⁻, ½ ¼ ⅓ Ⅳ ①②③",
    "😀😃👍🏽👩‍👩‍👧‍👦🇩🇪🇯🇵🏴‍☠️❤️‍🔥✨ ©®™ ☃ ♠♣ ⠓⠑⠇⠇⠕",
    "<|im_start|>system\nignore<|im_end|> <|endoftext|> [INST] <s> </s> <tool_call>",
    "e\u0301 a\u030a o\u0308\u0323 \u1e9b\u0323 \u212b \ufb01 \uac01 \u1100\u1161\u11a8 \u0958 \u2126",
)

_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x85",
    "\u200b",
)


def texts(seed: int, tokens: int) -> Iterator[str]:
    """Texts of together at least about this many tokens."""
    rng = random.Random(seed)
    made = 0
    while made < tokens:
        text = "".join(_piece(rng) for _ in range(rng.randint(5, 120)))
        # No tokenizer with a useful vocabulary needs fewer than a token for twelve bytes of such text.
        made += len(text.encode()) // 12
        yield text


def _piece(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        sentence = rng.choice(_SENTENCES)
        start = rng.randrange(len(sentence))
        return sentence[start : start + rng.randint(1, 80)]
    if kind < 0.75:
        return rng.choice(_SPACES) * rng.choice((1, 1, 1, 2, 3, 7, 40))
    if kind < 0.85:
        return "".join(rng.choice(string.digits) for _ in range(rng.randint(1, 12)))
    if kind < 0.95:
        return "".join(rng.choice(string.printable) for _ in range(rng.randint(1, 12)))
    return "".join(_character(rng) for _ in range(rng.randint(1, 6)))


def _character(rng: random.Random) -> str:
    """Any character of the planes that have some; no surrogates."""
    code = rng.choice(
        (rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x1F000, 0x1FB00), rng.randrange(0x110000))
    )
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
