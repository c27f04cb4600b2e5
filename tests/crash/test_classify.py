"""What a log's last lines tell of the end of a run: class, place, rank, host, origin, harmless."""

import time
from random import Random

import pytest

from trimtab.crash import CRASH_CLASSES, classify
from trimtab.crash.table import class_texts, crash_patterns

TRACE = ["Traceback (most recent call last):", '  File "train.py", line 10, in <module>']
STEPS = [f"step {i}/5000 loss {3 - i / 1000:.3f} lr 3e-4 tok/s 120000" for i in range(100, 140)]

# Wordings of the programs named, written for this test; (class, who must act, last lines).
ENDS = [
    ("oom_gpu", "config", ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"]),
    ("oom_gpu", "config", ["RuntimeError: HIP out of memory. Tried to allocate 1 GiB"]),
    (
        "oom_gpu",
        "config",
        [
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 9.1G at"
            " the bottom of memory"
        ],
    ),
    (
        "oom_gpu",
        "node",
        [
            *TRACE,
            '  File "/opt/torch/distributed/distributed_c10d.py", line 4, in init_process_group',
            "    barrier(group)",
            "RuntimeError: CUDA error: out of memory",
        ],
    ),
    (
        "oom_gpu",
        "config",
        [*TRACE, "    y = layer(x)", "RuntimeError: CUDA error: out of memory"],
    ),
    ("oom_host", "config", ["[ 91.2] Out of memory: Killed process 4242 (python3) total-vm:9kB"]),
    ("oom_host", "config", ["Last State: Terminated", "  Reason: OOMKilled", "  Exit Code: 137"]),
    ("oom_host", "config", ["train.sh: line 12: 5511 Killed    python train.py"]),
    ("oom_host", "config", [*TRACE, "MemoryError"]),
    ("lost_gpu", "node", ["kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=881, GPU has fallen off the bus."]),
    ("lost_gpu", "node", ["RuntimeError: No CUDA GPUs are available"]),
    ("ecc_xid", "node", ["NVRM: Xid (PCI:0000:1a:00): 48, pid=77, DBE (double bit error)"]),
    ("ecc_xid", "node", ["NVRM: Xid (PCI:0000:1a:00): 94, pid=77, Contained: SM (0x1)"]),
    ("ecc_xid", "code", ["NVRM: Xid (PCI:0000:1a:00): 31, pid=77, MMU Fault: ENGINE GRAPHICS"]),
    ("ecc_xid", "node", ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]),
    ("cuda_error", "code", ["RuntimeError: CUDA error: an illegal memory access was encountered"]),
    ("cuda_error", "code", ["RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"]),
    ("cuda_error", "code", ["Memory access fault by GPU node-4 on address 0x7f. Reason: Unknown."]),
    ("data_error", "data", ["RuntimeError: CUDA error: device-side assert triggered"]),
    ("data_error", "data", [*TRACE, "IndexError: index out of range in self"]),
    ("data_error", "data", [*TRACE, "json.decoder.JSONDecodeError: Expecting value: line 1"]),
    ("data_error", "data", [*TRACE, "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b"]),
    ("data_error", "code", [*TRACE, "KeyError: 'attention_mask'"]),
    (
        "nccl_timeout",
        "transient",
        [
            "[rank5]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 5] Watchdog caught collective"
            " operation timeout: WorkNCCL(SeqNum=80, OpType=ALLREDUCE, Timeout(ms)=600000) ran for"
            " 600060 milliseconds before timing out."
        ],
    ),
    (
        "nccl_error",
        "node",
        ["torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled"
         " system error"],
    ),
    ("nccl_error", "node", ["gpu7:91:120 [3] NCCL WARN NET/IB : Got async event : port error"]),
    ("nccl_error", "config", ["n1:9:12 [0] NCCL WARN Bootstrap : no socket interface found"]),
    ("hang", "node", ["[1.2] INFO: task python:881 blocked for more than 120 seconds."]),
    ("network", "config", [*TRACE, "torch.distributed.DistNetworkError: The client socket has timed "
                           "out after 600000ms while trying to connect to (10.0.0.1, 29500)."]),
    ("network", "config", ["OSError: We couldn't connect to 'https://huggingface.co' to load this file"]),
    ("network", "transient", [*TRACE, "requests.exceptions.HTTPError: 503 Server Error: Service"]),
    ("node_launch", "node", ["srun: error: Task launch for 9.0 failed on node n12: Job credential expired"]),
    ("node_launch", "node", ["slurmstepd: error: *** JOB 9 ON n12 CANCELLED AT 2026-01-02T03:04:05 DUE "
                             "TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"]),
    ("node_launch", "config", ["Warning  Failed  3s  kubelet  Error: ImagePullBackOff"]),
    ("numeric", "numeric", [*TRACE, "ValueError: Loss is nan, stopping training"]),
    ("numeric", "numeric", ["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-5}"] * 4),
    ("numeric", "numeric", ["Exception: Current loss scale already at minimum - cannot decrease scale"
                            " anymore. Exiting run."]),
    ("preempt_timelimit", "transient", ["slurmstepd: error: *** JOB 7 ON n3 CANCELLED AT "
                                        "2026-01-02T03:04:05 DUE TO TIME LIMIT ***"]),
    ("preempt_timelimit", "transient", ["slurmstepd: error: *** JOB 7 ON n3 CANCELLED AT "
                                        "2026-01-02T03:04:05 DUE TO PREEMPTION ***"]),
    ("preempt_timelimit", "transient", [*TRACE, "KeyboardInterrupt"]),
    ("storage", "config", [*TRACE, "OSError: [Errno 28] No space left on device"]),
    ("storage", "node", [*TRACE, "OSError: [Errno 116] Stale file handle"]),
    ("storage", "node", [*TRACE, "OSError: [Errno 5] Input/output error"]),
    ("storage", "config", [*TRACE, "OSError: [Errno 24] Too many open files"]),
    ("checkpoint", "config", ["RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:"]),
    ("checkpoint", "data", ["RuntimeError: PytorchStreamReader failed reading zip archive: invalid"]),
    ("checkpoint", "data", ["safetensors_rust.SafetensorError: Error while deserializing header"]),
    ("env_driver", "config", [*TRACE, "ModuleNotFoundError: No module named 'flash_attn'"]),
    ("env_driver", "config", ["ImportError: libcudart.so.12: cannot open shared object file"]),
    ("env_driver", "config", ["RuntimeError: The NVIDIA driver on your system is too old"]),
    ("env_driver", "code", [*TRACE, "AttributeError: module 'numpy' has no attribute 'float'"]),
    ("user_error", "config", ["train.py: error: unrecognized arguments: --learnig-rate 3e-4"]),
    ("user_error", "config", ["RuntimeError: The server socket has failed to bind: Address already in use"]),
    ("user_error", "config", [*TRACE, "ValueError: hidden_size must be divisible by num_heads (got 7)"]),
    ("user_error", "config", [*TRACE, "FileNotFoundError: [Errno 2] No such file or directory: 'c.yaml'"]),
    ("python_error", "code", [*TRACE, "TypeError: forward() missing 1 required positional argument"]),
    ("python_error", "code", [*TRACE, "AttributeError: 'NoneType' object has no attribute 'shape'"]),
    ("python_error", "code", ["Segmentation fault (core dumped)"]),
    ("python_error", "code", [*TRACE, "mypackage.errors.BucketFailure: bucket 3 overflowed"]),
    ("python_error", "code", [*TRACE, "trainer.Stopped: the router gave up on shard 4"]),
    # Told by where they were raised.
    ("user_error", "config", [*TRACE, '  File "sched.py", line 9, in __init__', "    assert self.a < self.b",
                              "AssertionError"]),
    ("user_error", "config", ["[rank0]: " + text for text in (
        *TRACE, '  File "/home/u/megatron/arguments.py", line 9, in validate',
        "    raise RuntimeError(message)", "RuntimeError: these two do not go together")]),
    ("user_error", "config", [*TRACE, '  File "main.py", line 9, in main', "    if cfg.model.depth > 3:",
                              "AttributeError: 'Box' object has no attribute 'depth'"]),
    ("data_error", "data", [*TRACE, '  File "loop.py", line 9, in step', "    x = batch['frames']",
                            "KeyError: 'frames'"]),
    ("data_error", "data", [*TRACE, '  File "mine/packed_dataset.py", line 9, in _slice',
                            "    return a + b", "TypeError: unsupported operand type(s) for +"]),
    ("env_driver", "code", [*TRACE, '  File "/opt/site-packages/lib/trainer.py", line 9, in step',
                            "    self.step_end(metrics=m)",
                            "TypeError: MyTrainer.step_end() got an unexpected keyword argument 'metrics'"]),
    ("checkpoint", "config", [*TRACE, '  File "opt.py", line 9, in load_state_dict',
                              "    raise ValueError(x)", "ValueError: parameter group has another size"]),
    ("storage", "transient", [*TRACE, '  File "cache.py", line 9, in put', "    os.replace(tmp, path)",
                              "FileNotFoundError: [Errno 2] No such file or directory: 'a' -> 'b'"]),
    # Failures that no row knows.
    ("unknown", "unknown", [*TRACE, "    main()", '  File "train.py", line 4, in main']),
    ("unknown", "unknown", [*TRACE, "    sys.exit(3)", "SystemExit: 3"]),
    ("unknown", "unknown", ["SystemExit: 1"]),
    ("unknown", "unknown", ["E0321 the flux capacitor is out of tune", "job ended with exit code 9"]),
    ("unknown", "unknown", ["FATAL: shard map 7 is inconsistent"]),
    ("unknown", "unknown", ["[2026-01-02 03:04:05] [ERROR] coordinator: epoch barrier was torn"]),
    ("unknown", "unknown", ["coordinator: panic: runtime state 0x7"]),
    ("unknown", "unknown", ["[E704 13:48:58.2 Mesh.cpp:17] [Rank 1] the tide went out"]),
    ("unknown", "unknown", ["mine.rs.Torn: page 9 is half written"]),
    ("unknown", "unknown", ["Check failed: a == b (3 vs. 4)"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("want", "act", "end"), ENDS, ids=[f"{e[0]}-{i}" for i, e in enumerate(ENDS)]
)
def test_an_end_is_named_after_a_healthy_log(want: str, act: str, end: list[str]) -> None:
    report = classify([*STEPS, *end])
    assert report is not None
    assert (report.crash_class, report.who_must_act) == (want, act)
    assert report.line_number > len(STEPS)
    assert report.says
    assert report.do
    assert report.why


def test_every_class_has_an_example() -> None:
    assert {want for want, _, _ in ENDS} == set(CRASH_CLASSES)


HARMLESS = [
    ["FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated."],
    ["WARNING: destroy_process_group() was not called before program exit, which can leak"],
    ["[INFO] [loss_scaler.py:181] OVERFLOW! Skipping step. Attempted loss scale: 65536, reducing to 32768"],
    ["eval: error rate 0.12, word error 0.31, mean squared error 0.004"],
    ["{'train_runtime': 812.3, 'train_loss': 1.9}", "Training completed."],
    ["NCCL version 2.21.5+cuda12.4", "n1:9:9 [0] NCCL INFO Connected all rings"],
    ["    SRAM Uncorrectable              : 0", "    DRAM Correctable : 0"],
    ["--max-restarts 3 --on-error continue --abort-on-nan true"],
    ['{"step": 5, "loss": 2.0, "sample": "RuntimeError: CUDA out of memory."}'],
    ["found no errors", "0 failures", "checked 12 shards for corruption: ok"],
    ["Exception ignored in: <function WeakSet.__del__ at 0x7f>", *TRACE, "TypeError: 'NoneType'"],
    ["using timeout=600 for nccl; hang detection enabled"],
    ["Setting TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "exit code 0", "Job finished successfully"],
    ["learning rate decayed; killed 0 stale trials; cancelled pruning callback"],
    ["error: 0.0312 accuracy: 0.98", "Error rate 0.12", "val error: 3.1e-2", "errors: 0"],
    ["SystemExit: 0", "exited with code 0", "exit status 0"],
    ["INFO worker: retry after error: connection reset", "WARNING: rank 3 was lost, now back"],
    ["on failure the job is restarted; abort on nan is off; max failed shards = 2"],
]  # fmt: skip


@pytest.mark.parametrize("tail", HARMLESS, ids=range(len(HARMLESS)))
def test_harmless_output_is_no_crash(tail: list[str]) -> None:
    assert classify([*STEPS, *tail]) is None
    assert classify([*STEPS[:20], *tail, *STEPS[20:]]) is None


@pytest.mark.parametrize(
    ("want", "act", "end"), ENDS, ids=[f"{e[0]}-{i}" for i, e in enumerate(ENDS)]
)
def test_an_error_that_training_survived_is_no_crash(want: str, act: str, end: list[str]) -> None:
    del want, act
    assert classify([*STEPS[:20], *end, *STEPS[20:]]) is None


@pytest.mark.parametrize("said", ["Training complete!", "[Mon] finished training", "done training"])
def test_an_end_that_a_shell_says_regardless_hides_no_traceback(said: str) -> None:
    rows = [f"step {i} loss {3 - i / 100:.4f} lr 0.001" for i in range(50)]
    raised = [
        "Traceback (most recent call last):",
        '  File "train.py", line 40, in <module>',
        "    main()",
        "KeyError: 'labels'",
    ]
    told = classify([*rows, *raised, said])
    assert told is not None
    assert told.line == "KeyError: 'labels'"
    assert classify([*rows, *raised, *rows, said]) is None
    assert classify([*rows, *raised, "{'train_runtime': 812.3, 'train_loss': 1.9}", said]) is None


def test_the_rank_that_failed_is_told_from_those_that_waited() -> None:
    waiting = [
        f"[rank{r}]:[E1 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation"
        f" timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600001 milliseconds before timing out."
        for r in (0, 1, 2)
    ]
    fault = [
        "[rank3]: Traceback (most recent call last):",
        "[rank3]: IndexError: list index out of range",
    ]
    summary = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Root Cause (first observed failure):",
        "  host      : node-b",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : 1 (pid: 99)",
    ]
    for lines in ([*fault, *waiting, *summary], [*waiting, *fault, *summary]):
        report = classify([*STEPS, *lines])
        assert report is not None
        assert (report.crash_class, report.rank, report.origin) == ("python_error", 3, "here")
        assert report.host == "node-b"


def test_an_echo_alone_says_that_the_fault_is_elsewhere() -> None:
    for echo in (
        "W1 torch/distributed/elastic/agent/server/api.py:732] Received 15 death signal, shutting down",
        "The node 'a_1_0' has failed to send a keep-alive heartbeat to the rendezvous 'none'",
        "srun: error: n1: task 0: Exited with exit code 1",
    ):
        report = classify([*STEPS, echo])
        assert report is not None
        assert report.origin == "elsewhere"
        assert not report.sure
        assert "another rank" in report.why


@pytest.mark.parametrize(
    "line",
    [
        "KeyboardInterrupt",
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***",
    ],
)
def test_an_end_from_outside_is_named_by_its_line(line: str) -> None:
    report = classify(["step 10 loss 3.1", line])
    assert report is not None
    assert report.crash_class == "preempt_timelimit"
    assert "does not name" not in report.why


def test_a_cause_stands_before_what_the_scheduler_says_of_it() -> None:
    report = classify(
        [
            *STEPS,
            "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.",
            "slurmstepd: error: *** STEP 3.0 ON n17 CANCELLED AT 2026-01-02T03:04:05 ***",
            "srun: error: n17: task 4: Out Of Memory",
        ]
    )
    assert report is not None
    assert (report.crash_class, report.host) == ("oom_host", "n17")


def test_words_without_a_failure_are_no_crash() -> None:
    assert classify([]) is None
    assert classify(["", "\x00", "\x1b[31m"]) is None
    assert classify([*STEPS, "and then the screen went dark"]) is None


def test_long_input_is_bounded() -> None:
    random = Random(0)
    words = ["step", "loss", "error", "failed", "nan", "rank", "[", ":", "Xid", "NCCL WARN", "1e-3"]
    lines = [" ".join(random.choices(words, k=random.randint(1, 60))) for _ in range(5000)]
    lines += ["CUDA " * 200_000, "a" * 1_000_000 + "Error: x"]
    classify(lines[:50])
    start = time.process_time()
    classify(lines)
    assert time.process_time() - start < 3, "seconds for 5,000 hostile lines"


def test_colour_is_no_part_of_a_wording() -> None:
    report = classify(["\x1b[31mRuntimeError: CUDA \x1b[0mout of memory. Tried to allocate"])
    assert report is not None
    assert report.crash_class == "oom_gpu"
    assert "\x1b" not in report.line


def test_the_line_is_the_error_and_not_the_code_that_a_traceback_quotes() -> None:
    error = "ConnectionResetError: NCCL connection reset by peer"
    quoted = '    raise ConnectionResetError("NCCL connection reset by peer")'
    frame = '  File "/job/train.py", line 12, in <module>'
    report = classify(
        ["Traceback (most recent call last):", frame, quoted, "         ^^^^^", error]
    )
    assert report is not None
    assert report.line == error


def test_every_row_names_a_class_and_an_advice() -> None:
    assert set(class_texts()) == set(CRASH_CLASSES)
    rows = crash_patterns()
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.crash_class in CRASH_CLASSES
        assert row.any
        assert all(text == text.lower() for text in row.any)
        assert row.cores
        assert row.regex is None or row.regex.pattern


NAN_STEPS = [f"step {i}/5000 loss nan lr 3e-4 tok/s 120000" for i in range(140, 150)]


@pytest.mark.parametrize("line", ["Iteration 220, loss = nan", "epoch 3 | loss: nan | grad is inf"])
def test_a_record_with_nan_is_no_message_of_an_end(line: str) -> None:
    assert classify([*STEPS, f"I0425 10:13:21 9167 solver.cpp:65] {line}"]) is None
    stopped = classify([*STEPS, f"{line}, stopping"])
    assert stopped is None or stopped.crash_class == "numeric"


def test_nan_rows_end_a_job_only_where_it_is_known_to_be_over() -> None:
    told = classify([*STEPS, *NAN_STEPS])
    assert told is not None
    assert told.pattern == "nan-records"
    assert classify([*STEPS, *NAN_STEPS], broken_rows_end=False) is None
    report = classify(
        [*STEPS, *NAN_STEPS, *TRACE, "ArithmeticError: Gradient exploded!"], broken_rows_end=False
    )
    assert report is not None
    assert (report.crash_class, report.line) == ("numeric", "ArithmeticError: Gradient exploded!")


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([], ["Could not push to the hub; continuing", "model saved to out/"]),
        (["2026-01-05 ERROR:root:plot failed"], []),
    ],
)
def test_an_error_that_the_program_speaks_of_itself_was_handled(
    before: list[str], behind: list[str]
) -> None:
    rows = [f"step {i} loss {3 - i / 100:.4f} lr 0.001" for i in range(50)]
    raised = ["Traceback (most recent call last):", '  File "a.py", line 4, in f', "OSError: no"]
    assert classify([*rows, *before, *raised, *behind, "Training complete"]) is None
