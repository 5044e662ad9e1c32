"""The text on which two tokenizers must agree before one may stand for the other. Pure data."""

from __future__ import annotations

from typing import Final

PROBE: Final[tuple[str, ...]] = (
    "The quick brown fox isn't lazy; it's 12,345.67 metres away, they'll say. We've I'd you're I'm DON'T WE'LL",
    "Straße, façade, naïve, œuvre, Ærøskøbing, ŁÓDŹ, İstanbul, ñandú, e\u0301le\u0300ve, A\u030angstro\u0308m",
    "Съешь ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "我能吞下玻璃而不伤身体。私はガラスを食べられます。나는 유리를 먹을 수 있어요. 㐀㐁 𠀀𠀁",
    "אני יכול לאכול זכוכית وأستطيع أكل الزجاج هذا لا يؤلمني. मैं काँच खा सकता हूँ। ฉันกินกระจกได้ မြန်မာ ქართული հայերեն አማርኛ",
    "0 1 12 123 1234 12345678901234567890 3.14159 1e-10 0xDEADBEEF ١٢٣ १२३ Ⅻ ² ½ ① 1st 2nd 20%",
    " a  b   c    d\te\t\tf \n g\n\nh\r\ni\n \n j  \n\n\n  k\u00a0l\u2003m\u3000n\u200bo\u2028p\x0bq\x0cr\x85s   ",
    "def f(x: int) -> dict[str, list[int]]:\n\treturn {k: [v ** 2 for v in range(x)] for k in 'ab'}  # ok\n\n\n    if x != y:\n",
    "#include <stdio.h>\nint main(void){for(int i=0;i<10;++i){printf(\"%d\\n\",i);}return 0;}\n<a href='x'>&amp;</a>",
    "😀👍🏽👩‍👩‍👧‍👦🇩🇪🏴󠁧󠁢󠁥󠁮󠁧󠁿❤️✨ ∑∫√∞≠≤ ℝ⊂ℂ €£¥ „Zitat“ «guillemets» – — … † ‡ ﬁ ﬀ Ａｂｃ １２３",
    "[Page 1]\n1. Introduction\n\n1.1 Scope ........ 12\n| a | b |\n|---|---|\n| 1 | 2 |\n\n* bullet\n- [x] done\n```py\n```\n$$x_i^2$$",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\Users\\x\\y ~/.bashrc __init__ camelCase snake_case SHOUT",
    "a" * 300 + "=" * 120 + "-" * 81 + " " * 130 + "\n" * 40 + "\t" * 17 + "!" * 33 + "漢" * 90,
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|><s></s>[INST]<tool_call>",
    "\ufeffBOM \ufffd replacement \ue000 private \U000e0001 tag \u0378 unassigned \U0001fae9 new",
)
