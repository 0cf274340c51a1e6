# SPDX-License-Identifier: MIT
"""The examples do what they say."""

import os
import subprocess
import sys
import tempfile
import unittest

from support import DEADLINE, DaemonTest, needs_numpy, np


EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "python",
                        "examples")


@needs_numpy
class Examples(DaemonTest):
    def start(self, name, *arguments):
        process = subprocess.Popen(
            [sys.executable, os.path.join(EXAMPLES, name), *map(str, arguments)], text=True,
            stdout=subprocess.PIPE, env=dict(os.environ, NDBUS_URL=self.daemon.unix))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, process):
        out, _ = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0)
        return out.splitlines()

    def test_camera(self):
        viewer = self.start("viewer.py", "camera/*", 9)
        self.finish(self.start("camera.py", "camera/left", 10))
        lines = self.finish(viewer)
        self.assertTrue(lines[-1].startswith("camera/left 9 missed "))
        self.assertEqual(len(lines[0]), 64)

    def test_movie(self):
        movie = np.arange(5 * 6 * 7, dtype=">u2").reshape(5, 6, 7)
        with tempfile.TemporaryDirectory(prefix="ndbus-test-") as folder, self.connect() as bus:
            path = os.path.join(folder, "movie.npy")
            np.save(path, movie)
            sub = bus.subscribe("movie", policy="block")
            player = self.start("movie.py", path, "movie", 1000)
            for i in range(5):
                message = sub.receive(DEADLINE)
                self.assertEqual(message.meta, {"frame": i, "of": 5})
                self.assertTrue((message.array == movie[i]).all())
            self.finish(player)

    def test_weights(self):
        self.finish(self.start("weights.py", "train"))
        lines = self.finish(self.start("weights.py", "use"))
        self.assertIn("version 3", lines[0])
        self.assertIn("2352", lines[1])

    def test_queue(self):
        workers = [self.start("work-queue.py", "work")]
        lines = self.finish(self.start("work-queue.py", "submit", 8))
        self.assertEqual(len({line.split()[1] for line in lines}), 8)
        self.finish(workers[0])

    def test_inference(self):
        server = self.start("inference.py", "serve", 3)
        lines = self.finish(self.start("inference.py", "ask", 3))
        self.assertEqual([line.split()[:2] for line in lines], [["image", str(i)] for i in range(3)])
        self.finish(server)

    def test_consumer(self):
        lines = self.finish(self.start("consumer.py", 4))
        self.assertEqual(len(lines), 8)
        self.assertIn("sensor/* sensor/temperature 23.0", lines)

    def test_all_are_tried(self):
        with open(__file__, encoding="utf-8") as f:
            text = f.read()
        for name in os.listdir(EXAMPLES):
            if name.endswith(".py"):
                self.assertIn(f'"{name}"', text)


if __name__ == "__main__":
    unittest.main()
