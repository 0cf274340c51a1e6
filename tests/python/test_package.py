# SPDX-License-Identifier: MIT
"""The package as such: its stubs say what is there, everything is documented, nothing is imported early."""

import ast
import inspect
import os
import subprocess
import sys
import unittest

import ndbus

STUBS = os.path.join(os.path.dirname(ndbus.__file__), "__init__.pyi")


class Package(unittest.TestCase):
    def setUp(self):
        with open(STUBS, encoding="utf-8") as f:
            self.stubs = {node.name: node for node in ast.parse(f.read()).body
                          if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                          and not node.name.startswith("_")}

    def test_stubs_have_all_names(self):
        self.assertEqual(set(self.stubs) | {"UNKNOWN"}, set(ndbus.__all__))
        for name, node in self.stubs.items():
            value = getattr(ndbus, name)
            if isinstance(node, ast.FunctionDef):
                continue
            said = {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
            if issubclass(value, ndbus.Error):
                self.assertEqual({b.attr for b in node.bases if isinstance(b, ast.Attribute)},
                                 {b.__name__ for b in value.__bases__ if b not in (ndbus.Error, Exception)})
            elif said:
                there = {n for n in vars(value) if not n.startswith("_")}
                self.assertEqual({n for n in said if not n.startswith("_")}, there, name)

    def test_stubs_have_all_parameters(self):
        for name, node in self.stubs.items():
            value = getattr(ndbus, name)
            functions = ([(f"{name}.{n.name}", n, getattr(value, n.name)) for n in node.body
                          if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
                          and not n.name.startswith("__")]
                         if isinstance(node, ast.ClassDef) else [(name, node, value)])
            for spelled, stub, function in functions:
                if any(getattr(d, "id", "") == "property" for d in stub.decorator_list):
                    continue
                parameters = inspect.signature(function).parameters.values()
                if any(p.kind is p.VAR_KEYWORD for p in parameters):
                    continue
                said = [a.arg for a in stub.args.args + stub.args.kwonlyargs if a.arg != "self"]
                self.assertEqual(said, [p.name for p in parameters if p.name != "self"], spelled)

    def test_documented(self):
        self.assertIn("Arrays in", ndbus.__doc__)
        for name in ndbus.__all__:
            value = getattr(ndbus, name)
            if not callable(value):
                continue
            self.assertTrue(value.__doc__, name)
            if isinstance(value, type) and value.__module__ == "ndbus":
                for n, member in vars(value).items():
                    if not n.startswith("_") and n not in ("code", "name"):
                        self.assertTrue(member.__doc__, f"{name}.{n}")

    def test_nothing_is_imported_early(self):
        done = subprocess.run(
            [sys.executable, "-c", "import sys, ndbus; ndbus.dumps(b''); "
             "print(*sorted({'numpy', 'asyncio', 'pickle', 'torch'} & set(sys.modules)))"],
            capture_output=True, check=True, text=True)
        self.assertEqual(done.stdout.strip(), "")

    def test_without_numpy(self):
        """Arrays then are ndbus.Array."""
        code = """
import sys
sys.modules["numpy"] = None
import array, ndbus
got = ndbus.loads(ndbus.dumps(array.array("d", [1, 2.5])))
assert type(got) is ndbus.Array and str(got.dtype) == "float64", got
assert memoryview(got).tolist() == [1, 2.5]
try:
    got.numpy()
except ImportError as error:
    assert "NumPy" in str(error)
else:
    raise AssertionError("no ImportError")
try:
    ndbus.dumps(3)
except TypeError as error:
    assert "no array" in str(error)
"""
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
