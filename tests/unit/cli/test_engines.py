"""Engine workers of ``longread up``."""

from __future__ import annotations

import pytest
import typer

from service.cli.engines import EngineSpec, environments, parse_engine, waves

BOTH = ("8k", "32k")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("8k", EngineSpec(("8k",))),
        (" 8k, 32k ", EngineSpec(BOTH)),
        ("8k,32k@0", EngineSpec(BOTH, ("0",))),
        ("8k,32k@0, 1", EngineSpec(BOTH, ("0", "1"))),
        ("8k@GPU-8f1c2d3e-aaaa", EngineSpec(("8k",), ("GPU-8f1c2d3e-aaaa",))),
    ],
)
def test_an_engine_worker_is_tiers_and_gpus(text: str, spec: EngineSpec) -> None:
    assert parse_engine(text) == spec


@pytest.mark.parametrize("text", ["", "@0", "9k", "8k@", "8k@zero", "8k@0,0", "8k@0,", "8k@-1", "8k@0@1"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_engine(text)


def test_a_single_engine_is_told_nothing() -> None:
    assert environments([EngineSpec(BOTH)], 0.8) == [{}]


def test_one_a_gpu_shares_nothing() -> None:
    specs = [EngineSpec(BOTH, ("0",)), EngineSpec(BOTH, ("1",))]
    assert environments(specs, None) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert waves(specs) == [[0, 1]]


def test_one_engine_is_spread_over_its_gpus() -> None:
    assert environments([EngineSpec(BOTH, ("2", "3"))], None) == [
        {"CUDA_VISIBLE_DEVICES": "2,3", "LONGREAD_ENGINE__TENSOR_PARALLEL_SIZE": "2"}
    ]


@pytest.mark.parametrize(("memory_share", "each"), [(None, "0.45"), (0.8, "0.4"), (0.85, "0.42")])
def test_engines_on_one_gpu_share_its_memory_and_start_in_turn(memory_share: float | None, each: str) -> None:
    specs = [EngineSpec(("8k",), ("0",)), EngineSpec(("32k",), ("0",)), EngineSpec(BOTH, ("1",))]
    envs = environments(specs, memory_share)
    assert [env.get("LONGREAD_ENGINE__GPU_MEMORY_UTILIZATION") for env in envs] == [each, each, None]
    assert waves(specs) == [[0, 2], [1]]


def test_engines_without_gpus_of_their_own_start_in_turn() -> None:
    assert waves([EngineSpec(("8k",)), EngineSpec(("32k",)), EngineSpec(BOTH, ("1",))]) == [[0], [1], [2]]
