# SPDX-License-Identifier: MIT
"""asyncio: no thread, one descriptor.

Whoever waits is tried again whenever the bus may have moved: when its descriptor says so, and after every
other call on it, since any call takes in what has come for all. The descriptor stays readable as long as
a message waits, also one that nobody waits for at the moment; watched as it is, the loop would spin. So
it is watched through an epoll of its own that reports changes and not states. A try that fails has read
all there was, so what comes later is a change.
"""

import asyncio
import select

from . import _ndbus


class _Waiters:
    """Those who wait on one bus in one event loop. The bus keeps it, until it is closed."""

    def __init__(self, bus, loop):
        self.bus = bus
        self.loop = loop
        self.waiters = {}  # future: what to try
        self.is_due = False
        self.epoll = select.epoll()
        self.epoll.register(bus.fileno(), select.EPOLLIN | select.EPOLLET)
        loop.add_reader(self.epoll.fileno(), self.on_readable)
        bus._on_moved = self.on_moved

    def close(self):
        if not self.loop.is_closed():
            self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()
        self.bus._on_moved = None

    def on_readable(self):
        self.epoll.poll(0)  # until there is another change
        self.on_moved()

    def on_moved(self):
        if self.bus.closed:
            self.close()
        if self.waiters and not self.is_due:
            self.is_due = True
            self.loop.call_soon(self.try_all)

    def try_all(self):
        """Again after a success, which may have taken in what somebody else waits for."""
        progress = True
        while progress:
            progress = False
            for future, attempt in list(self.waiters.items()):
                if future.done():
                    continue
                try:
                    future.set_result(attempt())
                except (_ndbus.TimedOutError, _ndbus.WouldBlockError):
                    continue
                except Exception as error:
                    future.set_exception(error)
                progress = True
        self.is_due = False

    async def wait(self, attempt, timeout):
        future = self.loop.create_future()
        self.waiters[future] = attempt
        self.on_moved()  # it may have moved since the first attempt
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            raise _ndbus.TimedOutError(f"nothing within {timeout} s") from None
        finally:
            del self.waiters[future]


def _waiters(bus):
    loop = asyncio.get_running_loop()
    waiters = getattr(bus._on_moved, "__self__", None)
    if waiters is None:
        return _Waiters(bus, loop)
    if waiters.loop is loop:
        return waiters
    if waiters.waiters and not waiters.loop.is_closed():
        raise RuntimeError("another event loop waits on this bus: give each a bus of its own")
    waiters.close()
    return _Waiters(bus, loop)


async def _wait(bus, attempt, timeout):
    timeout = _ndbus.timeout(timeout)
    try:
        return attempt()
    except (_ndbus.TimedOutError, _ndbus.WouldBlockError):
        if timeout == 0:
            raise
    return await _waiters(bus).wait(attempt, timeout)


async def receive(subscription, timeout=None):
    return await _wait(subscription.bus, lambda: subscription.receive(0), timeout)


async def publish(bus, topic, arrays=(), meta=None, timeout=5.0, **options):
    await _wait(bus, lambda: bus.publish(topic, arrays, meta, timeout=0, **options), timeout)


async def iterate(subscription):
    while True:
        try:
            message = await receive(subscription)
        except _ndbus.EndedError:
            return
        yield message
        del message
