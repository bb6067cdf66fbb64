"""Weights in one sealed memfd: written once by the daemon, mapped copy-on-write by engines.

The descriptor travels over the daemon's own Unix socket (SCM_RIGHTS), so neither side needs to
see the other's /proc. The kernel frees the memory when the last descriptor and map are gone,
however their owners ended: nothing is left to clean up.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import weakref
from typing import Any

PAGE = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_MAP_NORESERVE = 0x4000
_MFD_NOEXEC_SEAL = 0x8
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class SegmentWriter:
    """Appends buffers to a new memfd, each at a page boundary."""

    def __init__(self, name: str) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            # Kernels with vm.memfd_noexec=2 (6.3 on) refuse anything else.
            self.fd = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.fd = os.memfd_create(name, flags)
        self.size = 0

    def append(self, data: memoryview) -> int:
        """Write `data` and return its offset in bytes. Raises OSError (no memory left)."""
        offset = self.size
        done = 0
        while done < len(data):
            # One call writes at most 2 GiB.
            done += os.pwrite(self.fd, data[done : done + (1 << 30)], offset + done)
        self.size = -(-(offset + len(data)) // PAGE) * PAGE
        return offset

    def seal(self) -> int:
        """Make the segment immutable and return its descriptor, which the caller owns."""
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        return self.fd


def check_segment(fd: int, nbytes: int) -> None:
    """Raise ValueError unless `fd` is a sealed segment of at least `nbytes` bytes.

    A segment that could shrink would kill its readers with SIGBUS.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ValueError(f"the descriptor is not a memory segment: {error}") from None
    if seals & _SEALS != _SEALS:
        raise ValueError(f"the weight segment is not sealed (seals {seals:#x})")
    size = os.fstat(fd).st_size
    if size < nbytes:
        raise ValueError(f"the weight segment has {size} bytes, {nbytes} were promised")


def map_private(fd: int, offset: int, nbytes: int) -> Any:
    """Map part of a segment copy-on-write as a ctypes byte array.

    The map lives as long as the array (or any buffer made from it) and holds no descriptor:
    Python's own mmap would keep one for each of hundreds of tensors. Raises OSError.
    """
    address = _libc.mmap(
        None,
        nbytes,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | _MAP_NORESERVE,
        fd,
        offset,
    )
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes of weights: {os.strerror(code)}")
    array = (ctypes.c_ubyte * nbytes).from_address(address)
    # At interpreter exit other threads may still read the weights: leave that to the kernel.
    weakref.finalize(array, _libc.munmap, address, nbytes).atexit = False
    return array


def send_descriptor(conn: socket.socket, fd: int) -> None:
    socket.send_fds(conn, [b"F"], [fd])


def receive_descriptor(conn: socket.socket) -> int:
    """Receive one descriptor, which the caller closes. Raises ConnectionError or ValueError."""
    data, descriptors, _flags, _address = socket.recv_fds(conn, 1, 1)
    if not data:
        raise ConnectionError("the weight cache daemon closed the connection")
    if len(descriptors) != 1:
        raise ValueError("the weight cache daemon sent no descriptor")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
