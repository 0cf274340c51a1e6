# SPDX-License-Identifier: MIT
"""Publishing, subscribing, errors, signals, threads and forks."""

import asyncio
import gc
import math
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest
import warnings

from support import DEADLINE, DaemonTest, each_way, put

import ndbus


class WithToken(DaemonTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ndbus-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = put(folder.name, "token", "correct horse battery staple", 0o600)
        cls.options = "--token", f"lab {cls.path}"
        super().setUpClass()

    def test_token(self):
        with self.assertRaises(PermissionError):
            self.connect(self.daemon.tcp)
        self.assertGreater(self.connect(self.daemon.tcp, token=f"lab:{self.path}").ping(), 0)


class Ended(DaemonTest):
    options = "--block-timeout", "100"

    def test_end_is_no_timeout(self):
        """What is said once is no TimeoutError, after which one would go on."""
        classes = [value for value in vars(ndbus).values()
                   if isinstance(value, type) and issubclass(value, ndbus.Error)]
        self.assertEqual({c for c in classes if issubclass(c, TimeoutError)},
                         {ndbus.TimedOutError, ndbus.WouldBlockError})
        for policy, error in [("block", ndbus.SlowError), ("disconnect", ndbus.QueueOverflowError)]:
            bus, other = self.connect(), self.connect()
            sub = bus.subscribe(policy, policy=policy, depth=1, window=1)
            try:
                while other.subscribers(policy) > 0:
                    other.publish(policy, bytes(1 << 16), timeout=0)
            except ndbus.WouldBlockError:  # the topic is paused until the subscription has ended
                other.publish(policy, b"x", timeout=DEADLINE)
            with self.subTest(policy), self.assertRaises(error) as caught:
                while True:
                    try:
                        sub.receive(DEADLINE)
                    except TimeoutError:
                        continue
            self.assertIsInstance(caught.exception, BufferError)
            with self.subTest(policy), self.assertRaises(ndbus.EndedError):
                sub.receive(0)


class Basics(DaemonTest):
    @each_way
    def test_message(self, way):
        one, other = way.one, way.other
        sub = other.subscribe("m/*")
        one.publish("m/a", b"abc", {"n": 1})
        one.publish("m/a", [], {"n": 2}, encoding="mine")
        message = sub.receive(DEADLINE)
        self.assertEqual(
            (message.topic, message.meta, message.sequence, message.source,
             message.dropped, message.retained, message.redelivered, message.nbytes,
             message.encoding, message.reply_topic, message.subscription),
            ("m/a", {"n": 1}, 1, one.source, 0, False, False, 3, None, None, sub.id))
        self.assertEqual(message.time_ns // 10**9, int(message.time))
        self.assertEqual(bytes(message.frames[0]), b"abc")
        message = other.receive(DEADLINE)
        self.assertEqual((message.sequence, message.encoding, message.frames),
                         (2, "mine", ()))
        with self.assertRaises(ValueError):
            message.array
        with self.assertRaises(TimeoutError) as caught:
            sub.receive(0)
        self.assertIs(type(caught.exception), ndbus.TimedOutError)
        self.assertEqual(sub.stats.received, 2)
        self.assertEqual(one.subscribers("m/a"), 1)
        one.wait_subscribers("m/b", 1, DEADLINE)
        self.assertGreater(one.ping(), 0)
        one.flush()
        self.assertIsInstance(one.stats(), dict)

    def test_iteration(self):
        bus = self.connect()
        sub = bus.subscribe("i", policy="block", depth=4, window=2, bytes=1 << 20)
        for i in range(3):
            bus.publish("i", b"x", {"i": i})
        seen = []
        for message in sub:
            seen.append(message.meta["i"])
            if len(seen) == 3:
                sub.close()
        self.assertEqual(seen, [0, 1, 2])
        self.assertTrue(sub.closed)
        with self.assertRaises(ndbus.EndedError):
            sub.receive(0)
        sub.close()
        bus.subscribe("j")
        bus.publish("j", b"x")
        for message in bus:
            bus.close()
        self.assertEqual(message.topic, "j")
        with self.assertRaisesRegex(ValueError, "closed"):
            bus.publish("i", b"x")

    def test_shared_memory(self):
        one, two = self.connect(), self.connect(shm_max=1 << 20)
        other, without = self.connect(), self.connect(no_shm=True)
        large = bytes(2 << 20)
        self.assertGreater(one.message_max, len(large))
        subs = [bus.subscribe("m") for bus in (other, without)]
        for bus, way in ((one, (1, 0)), (two, (0, 1)), (without, (0, 0))):
            bus.publish("m", large)
            self.assertEqual((bus.shm_stats.published, bus.shm_stats.fallback), way)
            messages = [sub.receive(DEADLINE) for sub in subs]
            # what comes by the socket the daemon receives into shared memory of its own
            for message, is_shared in zip(messages, (True, False)):
                self.assertEqual(bytes(message.frames[0]), large)
                self.assertEqual(message.frames[0].readonly, is_shared)
            self.assertEqual((other.shm_stats.held, without.shm_stats.held), (1, 0))
            del message, messages
            other.ping()  # which says that it is no longer needed
        self.assertGreaterEqual(one.shm_stats.segment_bytes, len(large))
        self.assertGreater(one.shm_stats.segments, 0)
        self.assertEqual(two.shm_stats.segments, 0)

    def test_retained(self):
        one, two = self.connect(), self.connect()
        one.publish("r", b"1", retain=True)
        one.flush()
        with two.subscribe("r") as sub:
            self.assertTrue(sub.receive(DEADLINE).retained)
        with two.subscribe("r", retained=False) as sub:
            one.publish("r", b"2")
            self.assertEqual(bytes(sub.receive(DEADLINE).frames[0]), b"2")
        one.publish("r", retain=True)
        one.flush()
        with two.subscribe("r") as sub:
            one.publish("r", b"3")
            self.assertEqual(bytes(sub.receive(DEADLINE).frames[0]), b"3")

    def test_drops(self):
        one, two = self.connect(), self.connect()
        sub = two.subscribe("d", depth=1, window=1)
        for i in range(5):
            one.publish("d", b"x", {"i": i})
        one.flush()
        self.assertEqual(sub.receive(DEADLINE).dropped, 0)
        last = sub.receive(DEADLINE)
        self.assertEqual((last.meta["i"], last.dropped, sub.stats.dropped), (4, 3, 3))

    def test_block(self):
        one, two = self.connect(), self.connect()
        sub = two.subscribe("b", policy="block", depth=1, window=1)
        with self.assertRaises(ndbus.WouldBlockError) as caught:
            for _ in range(100):
                one.publish("b", bytes(1 << 16), timeout=0)
        self.assertIsInstance(caught.exception, TimeoutError)
        sub.close()

    def test_group(self):
        one, two, three = self.connect(), self.connect(), self.connect()
        subs = [bus.subscribe("g", group="workers", window=1) for bus in (two, three)]
        for i in range(2):
            one.publish("g", b"x", {"i": i})
        first = subs[0].receive(DEADLINE)
        with first:
            pass
        second = subs[1].receive(DEADLINE)
        self.assertEqual(second.meta, {"i": 1})
        # what a member had not finished when it went comes to another
        three.close()
        again = subs[0].receive(DEADLINE)
        self.assertEqual((again.meta, again.redelivered), ({"i": 1}, True))
        self.assertEqual(second.meta, {"i": 1})

    def test_request(self):
        asker, worker = self.connect(), self.connect(self.daemon.tcp)
        with self.assertRaises(ndbus.NoSubscriberError):
            asker.request("ask", b"1")
        sub = worker.subscribe("ask", group="g")

        def serve():
            message = sub.receive(DEADLINE)
            message.reply(bytes(message.frames[0]) + b"!", {"to": message.reply_topic})

        thread = threading.Thread(target=serve)
        thread.start()
        answer = asker.request("ask", b"1", {"q": 1}, timeout=DEADLINE)
        thread.join()
        self.assertEqual(bytes(answer.frames[0]), b"1!")
        self.assertEqual(answer.meta["to"], answer.topic)
        with self.assertRaises(ndbus.InvalidError):
            answer.reply(b"")
        with self.assertRaises(TimeoutError):
            asker.request("ask", b"2", timeout=0.01)

    def test_errors(self):
        bus = self.connect()
        for call, error, base in [
            (lambda: bus.publish("a//b", b""), ndbus.TopicError, ValueError),
            (lambda: bus.publish("a\0b", b""), ValueError, ValueError),
            (lambda: bus.subscribe("a/\0"), ndbus.TopicError, ValueError),
            (lambda: bus.publish("$x", b""), ndbus.Error, Exception),
            (lambda: bus.receive("1"), TypeError, TypeError),
            (lambda: ndbus.connect("http://x"), ndbus.InvalidError, ValueError),
            (lambda: ndbus.connect("unix:/nowhere/s"), ndbus.NotConnectedError, ConnectionError),
            (lambda: ndbus.Message(), TypeError, TypeError),
        ]:
            with self.subTest(error), self.assertRaises(error) as caught:
                call()
                bus.flush()
            self.assertIsInstance(caught.exception, base)
        classes = [value for value in vars(ndbus).values()
                   if isinstance(value, type) and issubclass(value, ndbus.Error)]
        self.assertEqual(len({c.code for c in classes}), len(classes))
        self.assertEqual(ndbus.TimedOutError.name, "NDBUS_ETIMEDOUT")
        self.assertTrue(all(c.__doc__ and c.__module__ == "ndbus" for c in classes))

    def test_arguments(self):
        """One that is refused is named, with its value and the limit."""
        bus = self.connect()
        message = self.connect_answerable(bus)
        most, window = 2**64 - 1, 2**62 - 1
        for name, values, calls, rule in [
            ("depth", [-1, 0, 2**64], [bus.subscribe], f"must be 1 to {most}"),
            ("bytes", [-1, 0, 2**64], [bus.subscribe], f"must be 1 to {most}"),
            ("window", [0], [bus.subscribe], f"must be 1 to {window}"),
            ("window", [-1, 2**62], [bus.subscribe], f"must be 0 to {window}"),
            ("window_bytes", [-1, 2**62, 2**64], [bus.subscribe], f"must be 0 to {window}"),
            ("policy", ["lossy", 1], [bus.subscribe], "must be \"drop-oldest\", "),
            ("objects", ["yes", 1], [bus.subscribe, lambda t, **o: bus.request(t, b"", **o)],
             "must be None or \"pickle\""),
            ("n", [-1, 2**32], [bus.wait_subscribers], f"must be 0 to {2**32 - 1}"),
            ("offline_messages", [-1, 2**32], [self.open], f"must be 0 to {2**32 - 1}"),
            ("offline_bytes", [-1, 2**64], [self.open], f"must be 0 to {most}"),
            ("shm_max", [-1, 2**64], [self.open], f"must be 0 to {most}"),
            ("connect_timeout", [None, -1, 0, math.nan, math.inf, 2147483.648, 10**400], [self.open],
             "must be more than 0 and at most 2147483.647 seconds"),
            ("stall", [None, 0, math.nan, math.inf], [self.open], "must be more than 0 and"),
            ("ping_timeout", [None, 0, math.nan, -(10**400)], [self.open], "must be more than 0 and"),
            ("ping", [-1, math.nan, -math.inf, -(10**400)], [self.open], "must be at least 0 seconds"),
            ("timeout", [-1, -0.1, math.nan, -math.inf, -(10**400), -(10**5000)], [
                lambda t, **o: bus.receive(**o), bus.subscribers, bus.wait_subscribers, bus.subscribe,
                lambda t, **o: bus.flush(**o), lambda t, **o: bus.ping(**o),
                lambda t, **o: bus.stats(**o), lambda t, **o: bus.close(**o),
                bus.publish, lambda t, **o: bus.publish_object(t, 1, **o),
                lambda t, **o: bus.request(t, b"", **o), lambda t, **o: bus.loan(t, 3, **o),
                lambda t, **o: message.reply(b"", **o),
                lambda t, **o: asyncio.run(bus.publish_async(t, **o)),
            ], "must be at least 0 seconds, or None for no limit"),
        ]:
            for value in values:
                for call in calls:
                    text = "longer than can be said" if value == -(10**5000) else repr(value)[:100]
                    with self.subTest(name, value=text, call=call), \
                            self.assertRaises(ndbus.InvalidError) as caught:
                        call("x", **{name: value})
                    self.assertIn(f"{name}: is {text}", str(caught.exception))
                    self.assertIn(rule, str(caught.exception))
        for name in ["depth", "window", "window_bytes"]:
            with self.subTest(name), self.assertRaises(TypeError):
                bus.subscribe("x", **{name: 1.5})
        # the limits themselves, and what has none
        bus.subscribe("x", depth=most, bytes=most, window=window, window_bytes=window)
        bus.subscribe("x", policy="latest", window=0, timeout=math.inf)
        self.open("x", connect_timeout=2147483.647, stall=1e-9, ping=None, offline_messages=2**32 - 1)
        bus.publish("x", b"", timeout=10**400)
        self.assertEqual(bus.receive(10**400).topic, "x")
        asyncio.run(bus.publish_async("x", b"", timeout=10**400))

    def open(self, _, **options):
        ndbus.connect(self.daemon.unix, **options).close()

    def connect_answerable(self, bus):
        """A message that awaits an answer."""
        sub = bus.subscribe("answerable")
        bus.publish("answerable", b"", reply=f"$reply/{bus.source}/1")
        return sub.receive(DEADLINE)

    def test_lost_connection(self):
        self.daemon.stop()
        self.daemon.start()
        bus = self.connect()
        sub = bus.subscribe("l")
        self.daemon.process.kill()
        self.daemon.process.communicate()
        with self.assertRaises(ConnectionError):
            sub.receive(DEADLINE)
        self.daemon.start()
        other = self.connect()

        def publish():  # when the bus, which moves only within its calls, has subscribed again
            other.wait_subscribers("l", 1, DEADLINE)
            other.publish("l", b"x")

        thread = threading.Thread(target=publish)
        thread.start()
        message = sub.receive(DEADLINE)
        thread.join()
        self.assertEqual(message.dropped, ndbus.UNKNOWN)
        self.assertTrue(math.isinf(message.dropped))

    def test_not_closed(self):
        bus = ndbus.connect(self.daemon.unix)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del bus
            gc.collect()
        self.assertEqual([w.category for w in caught], [ResourceWarning])

    def test_close_reports(self):
        bus = ndbus.connect(self.daemon.unix)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            bus.publish("c", b"x")
            with self.assertRaises(TimeoutError) as caught:
                bus.close(0.05)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertEqual(caught.exception.unconfirmed, 1)
        self.assertTrue(bus.closed)

    def test_interrupt(self):
        """A signal ends every wait; its handler runs, and what it raises is raised."""
        bus = self.connect()
        sub = bus.subscribe("s")

        def raise_interrupt():
            os.kill(os.getpid(), signal.SIGINT)

        def interrupt(wait):
            timer = threading.Timer(0.05, raise_interrupt)
            with self.assertRaises(KeyboardInterrupt):
                timer.start()
                wait()
            timer.join()

        def lend(loan):
            with loan:
                pass

        for wait in [lambda: sub.receive(), lambda: bus.receive(), lambda: next(bus),
                     lambda: bus.wait_subscribers("nobody"), lambda: next(sub),
                     lambda: bus.request("s", b"x", timeout=None)]:
            interrupt(wait)
        bus.publish("s", b"x")
        for message in sub:
            if bytes(message.frames[0]) == b"x":
                break

        other = self.connect()
        other.subscribe("full", policy="block", depth=1, window=1)
        with self.assertRaises(ndbus.WouldBlockError):
            while True:
                bus.publish("full", bytes(1 << 16), timeout=0)
        interrupt(lambda: bus.publish("full", b"x", timeout=None))
        interrupt(lambda: bus.publish_object("full", "x", timeout=None))
        interrupt(lambda: lend(bus.loan("full", 1 << 16, timeout=None)))
        other.close()
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            interrupt(lambda: bus.flush(None))
            interrupt(lambda: bus.ping(None))
            interrupt(lambda: bus.stats(None))
            interrupt(lambda: bus.subscribe("new", timeout=None))
            interrupt(lambda: bus.subscribers("new", None))
            interrupt(lambda: bus.close(None))
            interrupt(lambda: ndbus.connect(self.daemon.unix, connect_timeout=DEADLINE))
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertTrue(bus.closed)

    def test_threads(self):
        """A second thread is refused, and others run meanwhile."""
        bus, other = self.connect(), self.connect()
        sub = bus.subscribe("t")
        got = []
        thread = threading.Thread(target=lambda: got.append(sub.receive(DEADLINE)))
        thread.start()
        refused = None
        while refused is None:  # until the thread is in its call
            try:
                bus.subscribers("t")
            except RuntimeError as error:
                refused = error
        self.assertIn("one thread at a time", str(refused))
        other.publish("t", b"x")
        thread.join()
        self.assertEqual(got[0].topic, "t")
        # a message may go in another thread
        thread = threading.Thread(target=got.clear)
        thread.start()
        thread.join()

    def test_gil(self):
        """Waits and copies let other threads run."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(3600)  # nobody is made to give the GIL up
        self.addCleanup(sys.setswitchinterval, interval)
        bus = self.connect()
        large = bytes(1 << 20)
        packed, array = ndbus.dumps(large), ndbus.Array(large)

        def receive():
            with self.assertRaises(TimeoutError):
                bus.receive(0.001)

        for name, call, gives_up in [
            ("nothing", lambda: large.count(b"x"), False),
            ("receive", receive, True),
            ("publish", lambda: bus.publish("g", large), True),
            ("dumps", lambda: ndbus.dumps(large), True),
            ("own", lambda: ndbus.unpack(packed).own(), True),
            ("dlpack", lambda: array.__dlpack__(copy=True), True),
            ("connect", lambda: ndbus.connect(self.daemon.unix).close(), True),
        ]:
            with self.subTest(name):
                gate, ran = threading.Lock(), []
                gate.acquire()
                thread = threading.Thread(target=lambda: (gate.acquire(), ran.append(True)))
                thread.start()
                gate.release()  # now it wants the GIL and nothing else
                end = time.monotonic() + DEADLINE
                if gives_up:
                    while not ran and time.monotonic() < end:
                        call()
                else:
                    for _ in range(100):
                        call()
                self.assertEqual(bool(ran), gives_up)
                thread.join()

    def in_child(self, do):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                do()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_fork(self):
        """A child has what was received, and nothing else of the bus; what it does is nothing to its parent."""
        bus = self.connect()
        sub = bus.subscribe("f")
        large = bytes(range(256)) * 256
        bus.publish("f", b"abc")
        bus.publish("f", large)
        kept = [sub.receive(DEADLINE) for _ in range(2)]
        loan = bus.loan("f", 1 << 16, "int8")
        before = bus.shm_stats
        self.assertEqual((before.published, before.held), (1, 1))

        def child():
            for call in [lambda: bus.publish("f", b"x"), lambda: bus.receive(0), lambda: sub.receive(0),
                         lambda: bus.flush(), lambda: bus.ping(), lambda: bus.subscribe("g"),
                         lambda: bus.loan("f", 3), lambda: loan.__exit__(None, None, None),
                         lambda: bus.request("f", b"x"), lambda: bus.subscribers("f")]:
                with self.assertRaises(ndbus.ForkedError) as caught:
                    call()
                self.assertIsInstance(caught.exception, RuntimeError)
            self.assertEqual([bytes(m.frames[0]) for m in kept], [b"abc", large])
            kept[1].own()
            self.assertEqual(bytes(kept[1].frames[0]), large)
            kept.clear()
            gc.collect()
            bus.close()

        self.in_child(child)
        self.assertEqual(bus.shm_stats, before)
        self.assertEqual([bytes(m.frames[0]) for m in kept], [b"abc", large])
        with loan:
            with memoryview(loan) as m:
                m[0] = 5
            del m
        self.assertEqual(bytes(sub.receive(DEADLINE).frames[0])[0], 5)


if __name__ == "__main__":
    unittest.main()
