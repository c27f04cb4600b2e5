"""The promised names of each adapter, and what is imported to get them."""

import importlib
import subprocess
import sys

import pytest

import trimtab.integrations

PROMISED = {
    "accelerate": {"guard_loop"},
    "deepspeed": {"DeepSpeedGuard", "healthy_tag"},
    "fabric": {"FabricGuard"},
    "huggingface": {"GuardCallback", "GuardMixin", "GuardedTrainer", "WatchCallback"},
    "lightning": {"GuardCallback", "WatchCallback"},
    "loggers": {"MLflow", "Prometheus", "TensorBoard", "Trackio", "WandB"},
    "megatron": {"MegatronGuard", "MegatronWatch"},
    "torchtitan": {"GuardMixin", "GuardedTrainer", "guarded"},
    "trl": {"GuardMixin", "GuardedDPOTrainer", "GuardedGRPOTrainer", "GuardedSFTTrainer"},
}
NEEDS = {"huggingface": "transformers", "fabric": "lightning", "megatron": "megatron.core"}


def test_integrations_lists_every_adapter() -> None:
    assert set(trimtab.integrations.__all__) == set(PROMISED)
    assert set(PROMISED) <= set(dir(trimtab.integrations))
    with pytest.raises(AttributeError, match="keras"):
        trimtab.integrations.keras  # noqa: B018


@pytest.mark.torch
@pytest.mark.parametrize("framework", sorted(PROMISED))
def test_adapter_has_its_promised_names(framework: str) -> None:
    if framework != "loggers":
        pytest.importorskip(NEEDS.get(framework, framework), exc_type=ImportError)
    module = getattr(trimtab.integrations, framework)
    assert PROMISED[framework] <= set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "deepspeed", "torchtitan", "trl"])
def test_adapter_without_its_framework_names_the_extra(framework: str) -> None:
    code = (
        f"import sys; sys.modules[{framework!r}] = None\n"
        f"try: import trimtab.integrations.{framework}\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError")
    assert "pip install" in done.stdout


def test_integrations_imports_no_framework() -> None:
    code = "import trimtab.integrations, sys; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.torch
def test_megatron_watch_has_its_older_path() -> None:
    older = importlib.import_module("trimtab.integrations.megatron_watch")
    assert older.MegatronWatch is trimtab.integrations.megatron.MegatronWatch
