"""When a process that ended is started again. Pure: times in, times out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential delays that are forgotten after a healthy time.

    Attributes:
        first_seconds: Delay after the first exit.
        cap_seconds: Longest delay.
        healthy_seconds: A process that was ready for this long begins again at the first delay.
        exits: Exits since it was last healthy.
    """

    first_seconds: float = 1.0
    cap_seconds: float = 30.0
    healthy_seconds: float = 60.0
    exits: int = 0

    def after_exit(self, ready_seconds: float) -> float:
        """Count an exit and say how long to wait.

        Args:
            ready_seconds: How long the process had been ready; 0 when it never was.
        """
        if ready_seconds >= self.healthy_seconds:
            self.exits = 0
        self.exits += 1
        return min(self.first_seconds * 2.0 ** min(self.exits - 1, 32), self.cap_seconds)
