"""Which JSON Schemas an answer can follow: rules on the schema alone, so that nobody needs an engine to refuse one. Pure.

The rules keep to what the engines' grammars enforce, so that an answer that comes to its end is valid, and bound what a
schema costs: the API (milliseconds), the engine (its grammar) and the worker that checks the answer. Keywords that draft
2020-12 does not know are annotations and pass, as the draft says.
"""

from __future__ import annotations

from typing import Any

from service.domain.patterns import PatternRefused, positions
from service.domain.schema_parts import (
    FORMATS,
    NoSchema,
    Part,
    Place,
    check_part,
    children,
    kinds,
    listed,
    pointer,
    refused,
    types_of,
)

MAX_LEVELS = 64
MAX_PARTS = 500
MAX_CHOICES = 1000
MAX_BRANCHES = 32
MAX_REFERENCES = 200
MAX_LENGTH = 1000
MAX_POSITIONS = 2000
"""Characters of all bounded lengths and patterns together."""
MAX_STEPS = 200
"""Parts that are tried on one value, through references and alternatives."""


def check_schema(schema: dict[str, Any]) -> None:
    """Refuse a schema that an answer cannot follow.

    Args:
        schema: As the client sent it, parsed.

    Raises:
        NoSchema: It is no JSON Schema.
        SchemaNotSupported: With the place and the keyword.
    """
    _check_levels(schema)
    _Schema(schema).check()


def _check_levels(schema: dict[str, Any]) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_LEVELS):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise refused((), None, f"it is nested more than {MAX_LEVELS} levels deep")


class _Schema:
    """One schema: its parts by place, and the checks over all of them."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._parts: dict[Place, Part | bool] = {}
        self._targets: dict[Place, Place] = {}

    def check(self) -> None:
        self._collect()
        self._check_amounts()
        self._resolve()
        self._check_cycles()
        self._check_ends()
        for place, part in self._dicts():
            if "oneOf" in part:
                self._check_apart(place, len(part["oneOf"]))

    def _collect(self) -> None:
        waiting: list[tuple[Place, Any]] = [((), self._root)]
        while waiting:
            place, part = waiting.pop()
            if not isinstance(part, (dict, bool)):
                raise NoSchema(f"is not a JSON Schema: {pointer(place)} must be an object, true or false")
            self._parts[place] = part
            if len(self._parts) > MAX_PARTS:
                raise refused((), None, f"it has more than {MAX_PARTS} parts")
            if isinstance(part, dict):
                check_part(place, part)
                waiting.extend(children(place, part))
            elif not part and place[-1] not in ("items", "additionalProperties"):
                raise refused(place, None, "nothing follows false")

    def _dicts(self) -> list[tuple[Place, Part]]:
        return [(place, part) for place, part in self._parts.items() if isinstance(part, dict)]

    # -- amounts --------------------------------------------------------------------------------------------------

    def _check_amounts(self) -> None:
        choices = references = characters = 0
        for place, part in self._dicts():
            choices += len(part.get("enum", ())) + ("const" in part)
            if choices > MAX_CHOICES:
                raise refused(place, "enum", f"brings the values to choose from over {MAX_CHOICES}")
            references += "$ref" in part
            if references > MAX_REFERENCES:
                raise refused(place, "$ref", f"is one of more than {MAX_REFERENCES}")
            characters += _characters(place, part)
            if characters > MAX_POSITIONS:
                name = next(k for k in ("pattern", "maxLength", "minLength") if k in part)
                raise refused(place, name, f"brings lengths and patterns together over {MAX_POSITIONS} characters")
            for keyword, most in (("anyOf", MAX_BRANCHES), ("oneOf", MAX_BRANCHES), ("allOf", 1)):
                if keyword in part and not 1 <= len(part[keyword]) <= most:
                    raise refused(place, keyword, f"has {len(part[keyword])} branches; 1 to {most} are possible")

    # -- references and alternatives ------------------------------------------------------------------------------

    def _resolve(self) -> None:
        for place, part in self._dicts():
            if "$ref" not in part:
                continue
            if not part["$ref"].startswith("#"):
                raise NoSchema(f"{pointer(place)} must not refer to other documents")
            target = self._find(part["$ref"])
            if target is None:
                raise refused(place, "$ref", "names no part of this schema")
            self._targets[place] = target

    def _find(self, reference: str) -> Place | None:
        """The part that a reference names; names that a pointer would have to escape cannot be referred to."""
        if reference == "#":
            return ()
        node: Any = self._root
        place: Place = ()
        for step in reference.removeprefix("#/").split("/"):
            if isinstance(node, list) and step.isdecimal() and len(step) < 5 and int(step) < len(node):
                place, node = (*place, int(step)), node[int(step)]
            elif isinstance(node, dict) and step in node and not set(step) & set("~%"):
                place, node = (*place, step), node[step]
            else:
                return None
        return place if place in self._parts and reference.startswith("#/") else None

    def _same_value(self, place: Place) -> list[Place]:
        """The parts that are tried on the same value as this one."""
        if place in self._targets:
            return [self._targets[place]]
        part = self._parts[place]
        if isinstance(part, bool):
            return []
        return [(*place, k, n) for k in ("anyOf", "oneOf", "allOf") for n in range(len(part.get(k, ())))]

    def _check_cycles(self) -> None:
        steps: dict[Place, int] = {}
        on_the_way: set[Place] = set()
        for start in self._parts:
            way = [start]
            while way:
                place = way[-1]
                left = [inner for inner in self._same_value(place) if inner not in steps]
                if left and place not in steps:
                    on_the_way.add(place)
                    if left[0] in on_the_way:
                        raise refused(place, "$ref", "comes back to itself with no property or item between")
                    way.append(left[0])
                    continue
                way.pop()
                on_the_way.discard(place)
                steps[place] = 1 + sum(steps[inner] for inner in self._same_value(place))
                if steps[place] > MAX_STEPS:
                    raise refused(place, None, f"it stands for more than {MAX_STEPS} alternatives of one value")

    # -- what comes to an end -------------------------------------------------------------------------------------

    def _check_ends(self) -> None:
        """Refuse a schema that no finite value follows, because something in it requires itself."""
        ends: set[Place] = set()
        # The inner parts first, so that only references backwards need another round.
        order = sorted(self._parts, key=len, reverse=True)
        before = -1
        while len(ends) > before and () not in ends:
            before = len(ends)
            ends.update(place for place in order if place not in ends and self._ends(place, ends))
        if () not in ends:
            raise refused((), None, "it requires itself without end; make a property of the circle optional")

    def _ends(self, place: Place, ends: set[Place]) -> bool:
        part = self._parts[place]
        if isinstance(part, bool):
            return part
        if inner := self._same_value(place):
            return any(one in ends for one in inner)
        named = types_of(part)
        if "enum" in part or "const" in part or not named or named - {"object", "array"}:
            return True
        if "object" in named and all((*place, "properties", name) in ends for name in part.get("required", ())):
            return True
        first = [(*place, "prefixItems", n) in ends for n in range(len(part.get("prefixItems", ())))]
        more = part.get("minItems", 0) > len(first)
        return "array" in named and all(first) and (not more or (*place, "items") in ends)

    # -- oneOf ----------------------------------------------------------------------------------------------------

    def _check_apart(self, place: Place, branches: int) -> None:
        """A grammar takes oneOf for anyOf, so no value may follow two branches."""
        plain = [self._plain((*place, "oneOf", n)) for n in range(branches)]
        for n, one in enumerate(plain):
            if not all(self._are_apart(one, other) for other in plain[:n]):
                raise refused(
                    place, "oneOf", "has branches that one value could follow together; use anyOf, or give each of them "
                    "a required property with a const of its own",
                )  # fmt: skip

    def _plain(self, place: Place) -> Place:
        while len(inner := self._same_value(place)) == 1:
            place = inner[0]
        return place

    def _are_apart(self, one: Place, other: Place) -> bool:
        a, b = self._parts[one], self._parts[other]
        if isinstance(a, bool) or isinstance(b, bool):
            return False
        if _differ(kinds(a), kinds(b)) or _differ(listed(a), listed(b)):
            return True
        if not kinds(a) == kinds(b) == {"object"}:
            return False
        for name in set(a.get("required", ())) & set(b.get("required", ())):
            inner, more = (self._parts[self._plain((*at, "properties", name))] for at in (one, other))
            if isinstance(inner, dict) and isinstance(more, dict) and _differ(listed(inner), listed(more)):
                return True
        return False


def _differ(one: set[str] | frozenset[str] | None, other: set[str] | frozenset[str] | None) -> bool:
    return one is not None and other is not None and not one & other


def _characters(place: Place, part: Part) -> int:
    """How many characters a grammar writes out for a part.

    Raises:
        SchemaNotSupported: The part's own keywords exclude each other.
    """
    lengths = [k for k in ("minLength", "maxLength") if k in part]
    for keyword in lengths:
        if part[keyword] > MAX_LENGTH:
            raise refused(place, keyword, f"is over {MAX_LENGTH}")
    if len(lengths) == 2 and part["minLength"] > part["maxLength"]:
        raise refused(place, "minLength", "is greater than maxLength, and nothing could be answered")
    if "format" in part and part["format"] not in FORMATS:
        raise refused(place, "format", f"is none of {', '.join(sorted(FORMATS))}")
    others = [k for k in ("pattern", "format") if k in part]
    if len(others) + bool(lengths) > 1:
        raise refused(place, others[0], f"is not possible together with {(others[1:] or lengths)[0]}")
    if "pattern" not in part:
        return int(max((part[k] for k in lengths), default=0))
    try:
        return positions(part["pattern"])
    except PatternRefused as error:
        raise refused(place, "pattern", str(error)) from error
