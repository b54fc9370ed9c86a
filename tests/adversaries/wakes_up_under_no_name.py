"""As wakes_up_and_is_gone, and the process has a name that is no text: whoever reads it as text sees no such process."""

from tests.adversaries import edit, wakes_up_and_is_gone

CATEGORY = "timing"
LABS, DEVICES = wakes_up_and_is_gone.LABS, wakes_up_and_is_gone.DEVICES

AWAKE = "        alarm(WAIT)\n"
NAMED = "        ctypes.CDLL(None).prctl(15, bytes([255, 254, 65]), 0, 0, 0)  # PR_SET_NAME\n"


def source(lab: str) -> str:
    return edit(wakes_up_and_is_gone.source(lab), [(AWAKE, NAMED + AWAKE)])
