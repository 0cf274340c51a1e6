# SPDX-License-Identifier: MIT
"""Waiting in an event loop: several tasks on one bus, without spinning and without losing anybody."""

import asyncio
import unittest

from support import DEADLINE, DaemonTest

import ndbus


async def turn():
    """The other tasks have their turn."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


class Asyncio(DaemonTest):
    def run_async(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, DEADLINE))

    def test_iterate(self):
        async def main():
            with ndbus.connect(self.daemon.unix) as bus, ndbus.connect(self.daemon.tcp) as other:
                sub = bus.subscribe("a/*", policy="block")
                seen = []

                async def consume():
                    async for message in sub:
                        seen.append(message.meta["i"])
                        if len(seen) == 50:
                            sub.close()

                consumer = asyncio.create_task(consume())
                for i in range(50):
                    other.publish("a/b", b"x", {"i": i})
                    if i % 7 == 0:
                        await turn()
                await consumer
                self.assertEqual(seen, list(range(50)))

        self.run_async(main())

    def test_several(self):
        """One subscription has messages that nobody takes; others are served all the same."""
        async def main():
            with ndbus.connect(self.daemon.unix) as bus, ndbus.connect(self.daemon.unix) as other:
                idle = bus.subscribe("idle")
                subs = [bus.subscribe(f"s/{i}") for i in range(3)]
                other.publish("idle", b"x")
                other.flush()
                # its message is taken in, and now waits for somebody
                with self.assertRaises(TimeoutError):
                    await subs[0].receive_async(0.01)
                tasks = [asyncio.create_task(s.receive_async()) for s in subs]
                await turn()
                for i in range(3):
                    other.publish(f"s/{i}", b"x", {"i": i})
                await asyncio.wait(tasks)
                self.assertEqual([t.result().meta["i"] for t in tasks], [0, 1, 2])
                self.assertEqual((await idle.receive_async()).topic, "idle")

        self.run_async(main())

    def test_taken_in_by_another_call(self):
        """What a call of another task reads from the socket wakes who waits for it."""
        async def main():
            with ndbus.connect(self.daemon.unix) as bus, ndbus.connect(self.daemon.unix) as other:
                idle, sub = bus.subscribe("idle"), bus.subscribe("s")
                other.publish("idle", b"x")
                other.flush()
                bus.ping()
                task = asyncio.create_task(sub.receive_async())
                await turn()
                await turn()
                other.publish("s", b"x")
                other.flush()
                bus.ping()  # its answer comes behind the message, which is read with it
                self.assertEqual((await task).topic, "s")
                self.assertEqual(idle.receive(0).topic, "idle")

        self.run_async(main())

    def test_no_spin(self):
        """A message that nobody waits for does not keep the loop turning."""
        async def main():
            loop = asyncio.get_running_loop()
            with ndbus.connect(self.daemon.unix) as bus, ndbus.connect(self.daemon.unix) as other:
                bus.subscribe("idle")
                sub = bus.subscribe("s")
                other.publish("idle", b"x")
                other.flush()
                task = asyncio.create_task(sub.receive_async())
                turns = 0
                select = loop._selector.select

                def count(timeout):
                    nonlocal turns
                    turns += 1
                    return select(timeout)

                loop._selector.select = count
                loop.call_later(0.2, other.publish, "s", b"x")
                await task
                self.assertLess(turns, 20)

        self.run_async(main())

    def test_publish(self):
        async def main():
            with ndbus.connect(self.daemon.unix) as bus, ndbus.connect(self.daemon.unix) as other:
                sub = other.subscribe("p", policy="block", depth=1, window=1)

                async def produce():
                    for i in range(100):
                        await bus.publish_async("p", bytes(1 << 16), {"i": i}, timeout=None)

                producer = asyncio.create_task(produce())
                for i in range(100):
                    self.assertEqual((await sub.receive_async()).meta, {"i": i})
                await producer

        self.run_async(main())

    def test_ends(self):
        async def main():
            bus = ndbus.connect(self.daemon.unix)
            sub = bus.subscribe("e")
            with self.assertRaises(TimeoutError):
                await sub.receive_async(0)
            with self.assertRaises(TimeoutError):
                await sub.receive_async(timeout=0.01)
            task = asyncio.create_task(sub.receive_async())
            await turn()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            task = asyncio.create_task(sub.receive_async())
            await turn()
            bus.close()
            with self.assertRaises(ndbus.EndedError):
                await task

        self.run_async(main())

    def test_two_loops(self):
        bus = self.connect()
        sub = bus.subscribe("l")

        async def receive():
            with self.assertRaises(TimeoutError):
                await sub.receive_async(0.01)

        self.run_async(receive())
        self.run_async(receive())


if __name__ == "__main__":
    unittest.main()
