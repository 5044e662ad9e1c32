"""The settings reach the reading library, every one of them."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest

from service.settings import LimitSettings, ReadingSettings, Settings
from workers.ingest.reading import ReadLimits
from workers.read_job import read_limits

# A child that reads writes no file and starts no process: these are no choice.
FIXED = {"max_file_bytes", "max_processes"}
SHARED = {"max_pages", "max_text_chars"}
"""Limits that are the product's, not the reading library's alone."""


def test_the_defaults_are_the_librarys_own():
    limits = LimitSettings()
    expected = replace(ReadLimits(), max_pages=limits.max_pages, max_text_chars=limits.max_text_chars)
    assert read_limits(Settings()) == expected


def test_every_limit_is_a_setting():
    names = {field.name for field in fields(ReadLimits)}
    assert set(ReadingSettings.model_fields) - {"concurrency"} == names - FIXED - SHARED


@pytest.mark.parametrize("name", sorted(set(ReadingSettings.model_fields) - {"concurrency"}))
def test_a_setting_changes_its_limit_and_no_other(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(f"LONGREAD_READING__{name.upper()}", "77")
    before, after = asdict(read_limits(Settings(reading=ReadingSettings()))), asdict(read_limits(Settings()))
    assert after == before | {name: 77}
