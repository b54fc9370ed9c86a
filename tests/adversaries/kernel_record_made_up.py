"""What is written down of a launch is made up: a kernel of numpy's, which the measuring process would run."""

from tests.adversaries import BY_NUMPY, ahead, copied

CATEGORY = "work"
LABS = ("3i_triton",)
DEVICES = ("cpu",)
MADE_UP = '''
import sys

TEXT = """
def chain(x, bias, residual, weight, shift, out, BLOCK):
    a, b, r, w, s = (np.float64(t.numpy()) for t in (x, bias, residual, weight, shift))
    h = a + b
    y = r + h / (1 + np.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    y = y - y.mean(1, keepdims=True)
    out.numpy()[:] = y / np.sqrt((y * y).mean(1, keepdims=True) + 1e-5) * w + s
"""
launches = sys.modules["grader.sandbox.launches"].Launches
write = launches.write


def made_up(self, result, file):
    kernel, step = self.kernels[0], self.steps[-1]
    kernel["text"], kernel["names"] = TEXT, {"np": {"module": "numpy"}}
    step[3] = [{"tensor": each} for each in given] + [step[3][1], 1024]
    step[4] = {}
    write(self, result, file)


launches.write = made_up
given = []
begin = launches.__init__


def beginning(self, inputs=()):
    begin(self, inputs)
    given[:] = [self._tensor(each) for each in inputs]


launches.__init__ = beginning
'''


def source(lab: str) -> str:
    return ahead(MADE_UP, copied(BY_NUMPY))
