"""Every setting of the product, with its unit in its name.

Read from the environment (``LONGREAD_`` and ``__`` between levels) over an optional ``longread.toml`` in the working
directory or at ``LONGREAD_CONFIG``. Built by ``load_settings()`` in an entry point and passed on; there is no global
instance. Unknown keys are refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from service.domain.tiers import Tier, TierTable
from service.errors import SettingsError

_CONFIG_VARIABLE = "LONGREAD_CONFIG"

CLIENT_VARIABLES = ("LONGREAD_URL", "LONGREAD_API_KEY")
"""Environment variables of the client commands (``longread ask`` and others); no process of the service reads them."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class HttpSettings(_Group):
    host: str = "127.0.0.1"
    """Address the API listens on. Without API keys only loopback addresses are accepted unless
    ``LONGREAD_HTTP__ALLOW_OPEN`` is true."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port of the API; 0 takes a free one and prints it."""
    allow_open: bool = False
    """Listen on other than loopback addresses although no API key exists (inside a private container network)."""
    processes: int | None = Field(default=None, ge=1, le=64)
    """API processes that ``longread up`` runs on its port; ``longread serve`` is always one. None: one for each four cores,
    at most four."""
    head_timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a request line with its headers may take to arrive before the connection is closed."""


class DatabaseSettings(_Group):
    url: str | None = None
    """SQLAlchemy URL (``sqlite:///…`` or ``postgresql+psycopg://…``). None: ``longread.db`` in the data directory."""
    pool_size: int = Field(default=10, ge=1)
    """Connections kept per process, and as many again under load (PostgreSQL). The API processes of one ``longread up``
    share this number."""
    busy_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a write waits for another process's write (SQLite)."""


class BrokerSettings(_Group):
    url: str = "redis://127.0.0.1:6379/0"
    """Redis or Valkey URL. Holds doorbells and token streams only; it may be lost without losing a job."""
    publish_timeout_seconds: float = Field(default=0.25, gt=0)
    """Longest time a request waits for the doorbell to be rung before it leaves that to the republisher."""


class ModelSettings(_Group):
    path: str | None = None
    """Folder of the served model (config.json, tokenizer.json, weights). None: the bundled small model, prepared by
    ``longread model prepare``."""
    name: str | None = None
    """What answers call the model. None: the folder's name."""
    system_text: str = (
        "You answer questions about the document below. Use only what the document says. "
        "If the document does not contain the answer, say that it does not."
    )
    """Fixed text before every document. A change makes every stored prefix stale."""


class TierSettings(_Group):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
    """Name in the API, in queue names and on worker command lines."""
    length_tokens: int = Field(gt=0)
    """Context length, prompt and output together."""
    reserve_tokens: int = Field(gt=0)
    """Tokens kept free beside a document for history, question and answer when a tier is chosen."""


class LimitSettings(_Group):
    max_upload_bytes: int = Field(default=512 * 1024 * 1024, gt=0)
    """Largest file accepted."""
    min_free_disk_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)
    """Uploads are refused (507) when the disk of the data directory would fall below this."""
    max_pages: int = Field(default=10_000, gt=0)
    """Most pages of one document."""
    max_text_chars: int = Field(default=50_000_000, gt=0)
    """Most characters of one document's text."""
    max_question_tokens: int = Field(default=1024, gt=0)
    """Longest question."""
    default_output_tokens: int = Field(default=256, gt=0)
    """Output budget of a question that names none."""
    max_output_tokens: int = Field(default=2048, gt=0)
    """Largest output budget a question may name."""
    max_wait_seconds: float = Field(default=60.0, gt=0)
    """Longest long poll (``?wait=``)."""
    max_batch_items: int = Field(default=10_000, gt=0)
    """Most questions in one batch."""
    max_queued_tokens_per_tier: int = Field(default=50_000_000, gt=0)
    """Prompt tokens that may wait in one tier before interactive questions are answered 429."""
    max_waiting_per_tenant: int = Field(default=1000, gt=0)
    """Event streams and long polls that one tenant may have open at one API process, of which ``longread up`` may run
    several (``LONGREAD_HTTP__PROCESSES``)."""
    max_uploads_per_tenant: int = Field(default=32, gt=0)
    """Uploads that one tenant may have under way at one API process, likewise."""

    max_pin_seconds: int = Field(default=7 * 86_400, gt=0)
    """Longest time a document may be kept warm on demand (``pin_seconds``)."""
    max_pinned_share: float = Field(default=0.5, ge=0, le=1)
    """Share of a worker's KV cache that pinned documents may take."""

    max_documents_per_tenant: int | None = Field(default=None, gt=0)
    """Documents one tenant may have stored. None: no limit."""
    max_bytes_per_tenant: int | None = Field(default=None, gt=0)
    """Bytes of files one tenant may have stored. None: no limit."""

    @property
    def abandoned_seconds(self) -> float:
        """Age at which an estimate's file, or one that is still on its way in, is nobody's any more."""
        return self.max_wait_seconds + 600


class ReadingSettings(_Group):
    concurrency: int | None = Field(default=None, ge=1)
    """Documents read at once by one ingest worker. None: the number of cores."""
    max_children: int | None = Field(default=None, ge=1)
    """Child processes that read one long document together. None: the number of cores, at most 4."""
    parallel_from_seconds: float = Field(default=0.15, ge=0)
    """A document is given another child when the pages that nobody reads yet would take one child longer than this."""
    wall_seconds: float = Field(default=180.0, gt=0)
    """Wall-clock limit of reading one file's text, all its children together; OCR has its own."""
    page_seconds: float = Field(default=15.0, gt=0)
    """Wall-clock limit of one page with one reader; a child that is silent for longer is killed and the page given to
    the next reader."""
    cpu_seconds: int = Field(default=120, gt=0)
    """CPU limit of one reading child."""
    max_memory_bytes: int = Field(default=1536 * 1024 * 1024, gt=0)
    """Address space of one reading child, the mapped file not included."""
    max_open_files: int = Field(default=64, ge=16)
    """Files one reading child may have open."""
    max_restarts: int = Field(default=8, ge=0)
    """Children of one file that may be replaced after a crash or a limit before the file fails."""
    max_page_chars: int = Field(default=1_000_000, gt=0)
    """Most characters of one page's text."""
    min_text_chars: int = Field(default=10, ge=0)
    """Characters below which a whole PDF counts as having no text layer, as scans with page numbers have."""
    ocr_wall_seconds: float = Field(default=1800.0, gt=0)
    """Wall-clock limit of one file's OCR; pages that are not reached stay empty and are noted on the document."""
    ocr_page_seconds: float = Field(default=90.0, gt=0)
    """Wall-clock limit of one page's OCR."""
    ocr_cpu_seconds: int = Field(default=3600, gt=0)
    """CPU limit of one OCR child."""
    ocr_max_memory_bytes: int = Field(default=6144 * 1024 * 1024, gt=0)
    """Address space of one OCR child; it reserves far more than it touches."""
    ocr_max_pixels: int = Field(default=6_000_000, gt=0)
    """Pixels of a page's picture for OCR; larger pages are rendered smaller."""


class JobSettings(_Group):
    lease_seconds: float = Field(default=15.0, gt=0)
    """How long a claimed job stays with a worker that no longer renews it."""
    heartbeat_seconds: float = Field(default=3.0, gt=0)
    """Interval of the statement that renews a process's leases; at most a third of the lease."""
    sweep_seconds: float = Field(default=2.0, gt=0)
    """Interval of the maintenance steps: expired leases, deadlines, lost doorbells."""
    republish_after_seconds: float = Field(default=5.0, gt=0)
    """A queued job whose doorbell was rung longer ago than this is rung again."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts a job may use before it fails."""
    max_engine_deaths: int = Field(default=2, ge=1)
    """Engines that may die under one job before it is quarantined."""
    drain_seconds: float = Field(default=120.0, ge=0)
    """How long a stopping worker (also after Ctrl-C on ``longread up``) waits for its running jobs before it gives them back."""
    claim_window_seconds: float = Field(default=1.5, ge=0)
    """How long a job is kept for the worker that holds its document before any worker of the tier may take it."""
    max_affinity_wait_seconds: float = Field(default=10.0, gt=0)
    """Backlog, in seconds of prefill, up to which a question waits for the worker that holds its document."""
    pin_touch_seconds: float = Field(default=60.0, gt=0)
    """A pinned document that was not used for this long is used by its worker, so that the engine does not evict it."""
    batch_share: float = Field(default=0.5, gt=0, le=1)
    """Share of a worker's places that batch jobs may take, so that interactive questions find one free."""


class WebhookSettings(_Group):
    allowed_hosts: tuple[str, ...] = ()
    """Hosts (``name`` or ``name:port``) that webhooks may be sent to although they are on a private network, over http too
    (JSON in the environment). Every other host must be on the public internet."""
    allowed_ports: tuple[int, ...] = (443, 8443)
    """TCP ports of all other hosts (JSON in the environment)."""
    max_per_tenant: int = Field(default=20, gt=0)
    """Webhooks one tenant may register."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=30)
    """How long one attempt may take, from the connection to the end of the answer."""
    max_response_bytes: int = Field(default=64 * 1024, gt=0)
    """Bytes of an answer, head included, after which it is cut off."""
    max_attempts: int = Field(default=12, ge=1)
    """Attempts at one delivery; with the pauses below the last one comes about 27 hours after the first."""
    first_pause_seconds: float = Field(default=10.0, gt=0)
    """Pause after the first failed attempt; each later pause is three times as long, spread by a fifth."""
    longest_pause_seconds: float = Field(default=6 * 3600.0, gt=0)
    """Longest pause between two attempts."""
    secret_overlap_seconds: float = Field(default=86_400.0, ge=0)
    """How long messages are signed with the old secret too after it was replaced."""
    keep_days: float = Field(default=30.0, gt=0)
    """How long the log keeps deliveries that have ended."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often a worker looks for due deliveries; it looks at once when it has ended a job itself."""
    concurrency: int = Field(default=8, ge=1)
    """Deliveries one worker makes at once."""
    max_per_receiver: int = Field(default=2, ge=1)
    """Of these, to one webhook or host, so that a slow receiver does not hold up the others."""


class EngineSettings(_Group):
    concurrency: int | None = Field(default=None, ge=1)
    """Jobs one engine worker runs at once (threads that wait on the engine). None: from the profile."""
    citing_processes: int | None = Field(default=None, ge=1, le=64)
    """Processes in which a worker finds the pages that support its answers. None: one for each four cores, at most four."""
    kv_cache_dtype: str | None = None
    """KV cache type (``auto``, ``fp8``, …). None: fp8 where the device supports it."""
    block_size: int | None = Field(default=None, gt=0)
    """Tokens a KV block. None: from the profile."""
    max_num_seqs: int | None = Field(default=None, gt=0)
    """Requests in one engine step. None: from the profile."""
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    """Tokens computed in one engine step (the prefill chunk). None: from the profile."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of the GPU's memory the engine takes. None: 0.9."""
    cpu_kv_bytes: int | None = Field(default=None, gt=0)
    """Memory of the CPU engine's KV cache. None: from the free memory."""
    stream_interval_tokens: int | None = Field(default=None, ge=1)
    """Tokens of an answer that are streamed together, the first one excepted. None: from the profile."""
    bind_cores: bool | None = None
    """Pin one thread of a CPU engine to each core and keep one core free for its scheduler. None: on more than 8 cores."""
    enforce_eager: bool | None = None
    """Skip graph capture and compilation: starts faster, decodes slower. None: from the profile."""
    enable_prefix_caching: bool | None = None
    """Keep the KV of finished prompts for the next that begins alike. None: on."""
    enable_chunked_prefill: bool | None = None
    """Compute long prompts in pieces between which others run. None: on."""
    long_prefill_token_threshold: int | None = Field(default=None, ge=0)
    """Most prompt tokens of one request in a step while others wait. None: from the profile; 0: no limit."""
    max_num_queued_reqs: int | None = Field(default=None, gt=0)
    """Requests inside the engine before it refuses more. None: from the profile."""
    max_num_queued_tokens: int | None = Field(default=None, gt=0)
    """Prompt tokens waiting inside the engine before it refuses more. None: from the profile."""
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """GPUs one engine is spread over. None: 1."""
    rope_factor: float | None = Field(default=None, ge=1)
    """Stretch the model's native length by at least this. None: only as far as a served tier needs."""
    attention_backend: str | None = None
    """Attention kernels. None: the engine chooses."""
    weight_offload_bytes: int | None = Field(default=None, ge=0)
    """Weights kept in host memory for want of GPU memory. None: none."""
    offload_host_bytes: int | None = Field(default=None, ge=0)
    """Host memory for KV blocks that left the GPU. None: none."""
    offload_disk_dir: Path | None = None
    """Folder for KV blocks that left host memory; they outlive the engine. None: none."""
    offload_disk_bytes: int = Field(default=64 * 1024**3, gt=0)
    """Most bytes of that folder, all kinds of engines together; the longest unused blocks go first."""
    offload_disk_seconds: float = Field(default=7 * 24 * 3600.0, gt=0)
    """A block in that folder that nobody used for this long is deleted."""
    offload_block_size: int | None = Field(default=None, gt=0)
    """Tokens a block in host memory and on disk. None: 256."""
    adapters: dict[str, Path] | None = None
    """LoRA adapters by name, with the folder of each (JSON in the environment)."""
    quantization: str | None = None
    """Weight quantisation the model folder holds (``awq``, ``gptq``, …). None: as the model says."""
    silent_seconds: float = Field(default=60.0, gt=0)
    """Work in flight without any progress for this long makes the worker test its engine."""
    canary_seconds: float = Field(default=60.0, gt=0)
    """How long the engine may take for the one token of that test before it is taken for hung and replaced."""
    max_recall_loss: float = Field(default=0.1, ge=0, le=1)
    """How much less of a probe's facts a tier may find than the baseline before it is warned of (``longread probe``)."""
    dtype: str | None = None
    """Weight type. None: as the model says."""
    load_format: str | None = None
    """How weights are loaded; ``dummy`` makes random ones for speed measurements."""


class LogSettings(_Group):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    format: Literal["json", "console"] = "json"
    """One JSON object a line, or coloured text."""


def _default_tiers() -> tuple[TierSettings, ...]:
    return tuple(
        TierSettings(name=f"{k}k", length_tokens=k * 1024, reserve_tokens=reserve)
        for k, reserve in ((8, 1536), (32, 3072), (64, 4096), (128, 4096))
    )


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="LONGREAD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Path(".longread")
    """Folder of everything that is kept: database (SQLite), uploaded files, secret, embedded broker, logs."""
    http: HttpSettings = HttpSettings()
    """The API's socket."""
    database: DatabaseSettings = DatabaseSettings()
    """Where the truth is kept."""
    broker: BrokerSettings = BrokerSettings()
    """The doorbell between the API and the workers."""
    model: ModelSettings = ModelSettings()
    """The served model."""
    tiers: tuple[TierSettings, ...] = Field(default_factory=_default_tiers)
    """The context lengths documents are placed in (JSON in the environment)."""
    limits: LimitSettings = LimitSettings()
    """What is accepted."""
    reading: ReadingSettings = ReadingSettings()
    """Limits of the child processes that read documents."""
    jobs: JobSettings = JobSettings()
    """Leases, retries and maintenance."""
    webhooks: WebhookSettings = WebhookSettings()
    """Telling receivers of what has ended."""
    engine: EngineSettings = EngineSettings()
    """Engine settings that override what the profile derives."""
    logs: LogSettings = LogSettings()
    """Logging."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        toml = Path(os.environ.get(_CONFIG_VARIABLE, "longread.toml"))
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=toml))

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite:///{self.data_dir.resolve() / 'longread.db'}"

    @property
    def model_dir(self) -> Path:
        """Folder of the served model; it may not exist yet."""
        return Path(self.model.path).expanduser() if self.model.path else bundled_model_dir()

    @property
    def model_name(self) -> str:
        return self.model.name or self.model_dir.name

    def tier_table(self) -> TierTable:
        """The configured tiers.

        Raises:
            SettingsError: They do not fit together.
        """
        return TierTable(Tier(t.name, t.length_tokens, t.reserve_tokens) for t in self.tiers)


def bundled_model_dir() -> Path:
    """Where ``longread model prepare`` puts the small model, outside every checkout."""
    return Path(platformdirs.user_cache_dir("longread")) / "models" / "smollm2-135m-instruct"


def load_settings(**overrides: Any) -> Settings:
    """Read the settings once, at the start of a process.

    Args:
        overrides: Values from the command line; they win over environment and file.

    Raises:
        SettingsError: An unknown key, a value of the wrong kind, or settings that contradict each other.
    """
    _refuse_unknown_variables()
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "settings"
        raise SettingsError(f"{place}: {first['msg']}") from error
    jobs = settings.jobs
    if jobs.heartbeat_seconds * 3 > jobs.lease_seconds:
        raise SettingsError(
            f"jobs.heartbeat_seconds ({jobs.heartbeat_seconds:g}) must be at most a third of jobs.lease_seconds "
            f"({jobs.lease_seconds:g}): lower the first or raise the second."
        )
    limits = settings.limits
    if limits.default_output_tokens > limits.max_output_tokens:
        raise SettingsError(
            f"limits.default_output_tokens ({limits.default_output_tokens}) is above limits.max_output_tokens "
            f"({limits.max_output_tokens}): lower the first or raise the second."
        )
    settings.tier_table()
    return settings


def variable_names() -> set[str]:
    """Every environment variable that the settings read."""
    names = {_CONFIG_VARIABLE}
    for name, field in Settings.model_fields.items():
        names.add(f"LONGREAD_{name.upper()}")
        group = field.annotation
        if isinstance(group, type) and issubclass(group, _Group):
            names.update(f"LONGREAD_{name.upper()}__{inner.upper()}" for inner in group.model_fields)
    return names


def _refuse_unknown_variables() -> None:
    known = variable_names() | set(CLIENT_VARIABLES)
    # Variables of the test suite and of the Makefile share the prefix and are read by neither process.
    foreign = ("LONGREAD_TEST_", "LONGREAD_PIP_")
    unknown = [
        n for n in os.environ if n.startswith("LONGREAD_") and n.upper() not in known and not n.startswith(foreign)
    ]
    if unknown:
        raise SettingsError(f"Unknown setting {min(unknown)}; docs/configuration.md lists every setting.")
