"""Which row of a log stands where, for files of gigabytes: sparse, incremental, from any place.

Of each block (see `blocks`) only the number of rows that begin in it is kept (16 bytes a block,
64 KiB a gigabyte), and a row's position is found by scanning its block again. Counting starts at
the block that is looked at and goes both ways, so rows are numbered from there: row 0 is the first
row of the first block, rows before it are negative. A number never changes while the index grows
in either direction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock
from typing import cast

from engine_ctl.logs.blocks import BLOCK, Found, Scan, counted
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.index_tasks import Counting, Finding, Wanted
from engine_ctl.logs.patience import TooSlow, at_most, can_end
from engine_ctl.logs.view_remote import answered

_AT_FIRST_S = 0.03
_HERE_S = 0.25
_ELSEWHERE_S = 10.0
_KEPT = 24
_AT_ONCE = 8


class RowIndex:
    """The rows of a file by number. One thread calls `step` and `grow`, any thread looks up.

    Blocks of a scan that may not end are for a process (`task`), not for `step`, and `grow` leaves
    them to it. `too_slow`: a look-up took longer than a reader can wait; none is made any more."""

    def __init__(self, file: LogFile, scan: Scan, near: int | None = None) -> None:
        """`near`: the position to begin at; None: the end. Counts the first block at once."""
        self.file = file
        self.scan = scan
        self._lock = RLock()
        self._settled = file.last_line()
        place = min(self._settled if near is None else near, self._settled, max(file.size - 1, 0))
        self.origin = max(place, 0) // BLOCK
        self._down: array[int] = array("Q")
        self._up: array[int] = array("Q")
        self._few: dict[int, Found] = {}
        self._covered: dict[int, int] = {}
        self._recent: OrderedDict[int, Found] = OrderedDict()
        self._below = False
        self._down_asked = self._up_asked = self._turn = 0
        self._unsure: int | None = None
        self.too_slow = False
        if file.size and not self.may_not_end:
            self._down.append(self._count(self.origin))
        elif file.size and can_end():
            try:
                with at_most(_AT_FIRST_S):
                    self._down.append(self._count(self.origin))
            except TooSlow:  # the process finds out
                self._down = array("Q")

    # Growing

    @property
    def files(self) -> tuple[LogFile, ...]:
        return (self.file,)

    @property
    def blocks(self) -> int:
        """How many blocks the file has."""
        return -(-self.file.size // BLOCK)

    @property
    def complete(self) -> bool:
        """Whether every block has been counted."""
        return len(self._up) >= self.origin and self.origin + len(self._down) >= self.blocks

    @property
    def share(self) -> float:
        """How much of the file has been counted, of 1."""
        return min((len(self._up) + len(self._down)) / self.blocks, 1.0) if self.file.size else 1.0

    @property
    def at_top(self) -> bool:
        """Whether the rows of the file's beginning are known, so that numbers can be absolute."""
        return len(self._up) >= self.origin

    @property
    def left(self) -> int:
        """How many blocks have not been counted yet."""
        return max(self.blocks - len(self._up) - len(self._down), 0)

    @property
    def may_not_end(self) -> bool:
        """Whether counting is only for a process that can be killed."""
        return self.scan.may_not_end

    def step(self) -> bool:
        """Count one more block; False when there is none left."""
        wanted = self.ask(1)
        if wanted is None:
            return False
        self.answer(wanted, counted(self.file, self.scan, wanted.blocks))
        return True

    @property
    def task(self) -> Counting:
        """What counts the blocks of `ask`."""
        return Counting(self.scan)

    @property
    def version(self) -> int:
        """Changes when the task does."""
        return self.scan.version

    def ask(self, most: int) -> Wanted | None:
        """The next blocks to count, at most so many; None when there is nothing to ask for. Several
        questions may be open, to be answered in their order."""
        self._down_asked = max(self._down_asked, self._sure)
        self._up_asked = max(self._up_asked, len(self._up))
        blocks: list[int] = []
        while len(blocks) < most:
            below = self.origin + self._down_asked < self.blocks
            above = self._up_asked < self.origin
            if not (below or above):
                break
            self._below = not self._below if below and above else below
            if self._below:
                blocks.append(self.origin + self._down_asked)
                self._down_asked += 1
            else:
                self._up_asked += 1
                blocks.append(self.origin - self._up_asked)
        if not blocks:
            return None
        return Wanted(tuple(blocks), self.file.size, self._settled, self.version, self._turn)

    def answer(self, wanted: Wanted, found: Sequence[Found | int]) -> None:
        """What the blocks hold. Of a file that grew or a scan that changed since then only what
        still holds is taken, and the rest asked for again."""
        if wanted.turn != self._turn:
            return
        whole = wanted.size == self.file.size
        with self._lock:
            for block, part in zip(wanted.blocks, found, strict=True):
                below = block >= self.origin
                sums = self._down if below else self._up
                at = block - self.origin if below else self.origin - 1 - block
                holds = whole or block < wanted.settled // BLOCK
                if below and self.may_not_end and self._sure <= at <= len(sums):
                    self._take_for_now(at, block, part, holds)
                    continue
                if at < len(sums):
                    continue
                if at > len(sums) or not holds or wanted.version != self.version:
                    self.ask_again()
                    return
                sums.append((sums[-1] if sums else 0) + self._keep(block, part))

    @property
    def _sure(self) -> int:
        """How many blocks from `origin` on are counted for good."""
        return len(self._down) if self._unsure is None else self._unsure

    def _take_for_now(self, at: int, block: int, found: Found | int, holds: bool) -> None:
        """What a block holds, in the place of an older answer; asked for again where the file
        grew meanwhile, but shown, so that a log that always grows has matches too."""
        sums, sure = self._down, self._sure
        self._recent.pop(block, None)
        count = self._keep(block, found)
        if at == len(sums):
            sums.append((sums[-1] if sums else 0) + count)
        else:
            delta = count - (sums[at] - (sums[at - 1] if at else 0))
            for index in range(at, len(sums)):
                sums[index] += delta
        sure += at == sure and holds
        self._unsure = sure if sure < len(sums) else None
        if not holds:
            self._down_asked = min(self._down_asked, sure)

    def ask_again(self) -> None:
        """Forget what was asked for and not answered."""
        self._down_asked = self._up_asked = 0
        self._turn += 1

    def grow(self) -> None:
        """The file grew: count its last blocks again, and some of the new ones."""
        changed = max(self._settled // BLOCK - self.origin, 0)
        self._settled = self.file.last_line(self._settled)
        if changed > len(self._down):
            return
        if self.may_not_end:
            # Asked for again; until there is an answer the old numbers hold.
            if changed < self._sure:
                self._unsure = changed
            self._down_asked = min(self._down_asked, self._sure)
            return
        with self._lock:
            for block in [b for b in self._recent if b - self.origin >= changed]:
                del self._recent[block]
        total = self._down[changed - 1] if changed else 0
        counts: list[int] = []
        for block in range(
            self.origin + changed, min(self.origin + changed + _AT_ONCE, self.blocks)
        ):
            total += self._count(block)
            counts.append(total)
        with self._lock:
            del self._down[changed:]
            self._down.extend(counts)
            self._down_asked = min(self._down_asked, len(self._down))

    def again(self, start: int, end: int) -> None:
        """Count the blocks of a range of positions again (what is a row in them has changed)."""
        for block in range(start // BLOCK, max(end - 1, start) // BLOCK + 1):
            below = block >= self.origin
            at = block - self.origin if below else self.origin - 1 - block
            sums = self._down if below else self._up
            if at >= len(sums):
                continue
            with self._lock:
                self._recent.pop(block, None)
                delta = self._count(block) - (sums[at] - (sums[at - 1] if at else 0))
                for index in range(at, len(sums)):
                    sums[index] += delta

    def _count(self, block: int) -> int:
        return self._keep(block, counted(self.file, self.scan, (block,))[0])

    def _keep(self, block: int, found: Found | int) -> int:
        """Keep what was found in a block; the number of its rows."""
        few = None if isinstance(found, int) else found
        if few is None:
            self._few.pop(block, None)
        else:
            self._few[block] = few
        if few is not None and few.through:
            self._covered[block] = few.lead
        else:
            self._covered.pop(block, None)
        return found if isinstance(found, int) else len(found.rows)

    # Looking up

    @property
    def first(self) -> int:
        """The number of the first row known; it falls while the index grows upwards."""
        return -self._up[-1] if self._up else 0

    @property
    def stop(self) -> int:
        """The number behind the last row known."""
        return self._down[-1] if self._down else 0

    def __len__(self) -> int:
        with self._lock:
            return self.stop - self.first

    def _base(self, block: int) -> int:
        at = block - self.origin
        if at > 0:
            return self._down[min(at, len(self._down)) - 1] if self._down else 0
        return -self._up[min(-at, len(self._up)) - 1] if at and self._up else 0

    def _find(self, block: int) -> Found:
        found = self._few.get(block) or self._recent.get(block)
        if found is None:
            found = self._look_up(block)
            self._recent[block] = found
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        elif block in self._recent:
            self._recent.move_to_end(block)
        return found

    def _look_up(self, block: int) -> Found:
        if not self.may_not_end:
            return self.scan.find(self.file, block)
        if self.too_slow:
            return Found(())
        try:
            if can_end():
                with at_most(_HERE_S):
                    return self.scan.find(self.file, block)
            wanted = block, self.file.size
            return cast(Found, answered(Finding(self.scan), (self.file,), wanted, _ELSEWHERE_S))
        except TooSlow:
            self.too_slow = True
            return Found(())

    def _place(self, number: int) -> tuple[int, int]:
        """(block, index in the block) of a row. Raises IndexError."""
        if not self.first <= number < self.stop:
            raise IndexError(number)
        if number >= 0:
            at = bisect_right(self._down, number)
            return self.origin + at, number - (self._down[at - 1] if at else 0)
        at = bisect_left(self._up, -number)
        return self.origin - 1 - at, number + self._up[at]

    def row(self, number: int) -> int | None:
        """The position of a row's line; None when the file changed meanwhile.

        Raises IndexError for a number that is not known."""
        with self._lock:
            block, at = self._place(number)
            rows = self._find(block).rows
            return rows[at] if at < len(rows) else None

    def at(self, offset: int) -> int:
        """The number of the last row that begins at or before a position, within those known."""
        with self._lock:
            block = min(max(offset, 0), max(self.file.size - 1, 0)) // BLOCK
            block = max(block, self.origin - len(self._up))
            block = min(block, self.origin + len(self._down) - 1)
            if block < 0 or not self._down:
                return self.first
            number = self._base(block) + bisect_right(self._find(block).rows, offset) - 1
            return max(self.first, min(number, self.stop - 1))

    def known(self, offset: int) -> bool:
        """Whether the block of a position has been counted."""
        block = offset // BLOCK
        with self._lock:
            return self.origin - len(self._up) <= block < self.origin + len(self._down)

    def folded(self, number: int) -> int:
        """How many lines are folded behind a row."""
        with self._lock:
            block, at = self._place(number)
            found = self._find(block)
            if at >= len(found.more):
                return 0
            total = found.more[at]
            if at < len(found.rows) - 1 or not found.open:
                return total
            last = self.origin + len(self._down) - 1
            while (block := block + 1) <= last:
                covered = self._covered.get(block)
                if covered is None:
                    return total + self._find(block).lead
                total += covered
            return total
