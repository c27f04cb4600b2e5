"""The older path of `trimtab.integrations.megatron.watch`, as a module and as a command."""

from trimtab.integrations.megatron.watch import MegatronWatch, main, restart_arguments

__all__ = ["MegatronWatch", "main", "restart_arguments"]

if __name__ == "__main__":
    raise SystemExit(main())
