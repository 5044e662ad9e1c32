"""The docs are tested: what they list is what there is."""

from __future__ import annotations

from pathlib import Path

from service import errors
from service.errors_table import markdown as errors_markdown
from service.settings_table import markdown

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_lists_every_setting_as_it_is() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == markdown(), "run: python -m service.settings_table > docs/configuration.md"


def error_classes(kind: type[errors.LongreadError]) -> list[type[errors.LongreadError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in error_classes(child))]


PUBLIC = [kind for kind in error_classes(errors.LongreadError) if kind.__module__ == errors.__name__]


def test_the_errors_page_lists_every_code_as_it_is() -> None:
    written = (ROOT / "docs" / "errors.md").read_text()
    assert written == errors_markdown(), "run: python -m service.errors_table > docs/errors.md"


def test_codes_are_stable_names() -> None:
    leaves = [kind for kind in PUBLIC if not kind.__subclasses__()]
    codes = [kind.code for kind in leaves]
    assert len(codes) == len(set(codes))
    assert all(code.isidentifier() and code == code.lower() for code in codes)
