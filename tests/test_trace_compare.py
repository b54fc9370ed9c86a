"""Comparison of two traces, and the families of kernels."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_trace import PAGEABLE, PINNED, Recording

from grader.trace.analysis import analyse
from grader.trace.compare import Change, compare, family_times, numbers
from grader.trace.kernels import family
from grader.trace.metrics import Metrics

US = 1000
SGEMM, NVJET = "ampere_sgemm_128x64_tn", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"

