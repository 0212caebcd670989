"""Something that is done again and again beside the work of a process, in a thread of its own."""

import threading
from collections.abc import Callable


class Pulse:
    """Calls a function every so many seconds until it is over."""

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self.beat = beat
        self.seconds = seconds
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name=getattr(beat, "__name__", "pulse"), daemon=True)

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self.over.set()
        self.thread.join(timeout=self.seconds)  # a file system that hangs keeps nobody from ending

    def _run(self) -> None:
        while not self.over.wait(self.seconds):
            self.beat()
