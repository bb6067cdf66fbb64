"""Stand-ins of ranks of a weight-cache daemon, for tests of who holds a socket."""

# Holds a socket and its lock, as a rank of `vllm preload` does; says `up` when it listens.
RANK = """
import fcntl, os, socket, sys, time
path = sys.argv[1]
lock = os.open(path + ".lock", os.O_CREAT | os.O_RDWR, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
print("up", flush=True)
time.sleep(1000)
"""
