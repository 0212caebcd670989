"""Something that is done again and again beside the work of a process, in a thread of its own."""

import threading
from collections.abc import Callable

LONGEST_END = 5.0  # seconds that the end of a pulse waits for a beat that is on its way


class Pulse:
    """Calls a function every so many seconds until it is over; the first time after so many, or at once."""

    def __init__(self, beat: Callable[[], None], seconds: float, *, at_once: bool = False) -> None:
        self.beat = beat
        self.seconds = seconds
        self.at_once = at_once
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name=getattr(beat, "__name__", "pulse"), daemon=True)

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self.over.set()
        self.thread.join(timeout=LONGEST_END)  # a file system that hangs keeps nobody from ending

    def _run(self) -> None:
        if self.at_once:
            self.beat()
        while not self.over.wait(self.seconds):
            self.beat()
