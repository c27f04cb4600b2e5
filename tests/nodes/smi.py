"""What nvidia-smi prints, made by code: `-q` as text and as XML, with a fault on request."""

from collections.abc import Mapping

__all__ = ["smi_text", "smi_xml"]


def smi_text(num_gpus: int = 8, driver: str = "550.127.05", **faults: Mapping[int, str]) -> str:
    """Return `nvidia-smi -q`; a fault is a dictionary of GPU -> value."""

    def value(name: str, gpu: int, calm: str) -> str:
        return faults.get(name, {}).get(gpu, calm)

    lines = ["", "==============NVSMI LOG==============", ""]
    lines.append("Timestamp                                 : Sun Mar  1 10:00:00 2026")
    lines.append(f"Driver Version                            : {driver}")
    lines.append("CUDA Version                              : 12.4")
    lines += ["", f"Attached GPUs                             : {num_gpus}"]
    for gpu in range(num_gpus):
        lines += [
            f"GPU 00000000:{0x18 + gpu:02X}:00.0",
            "    Product Name                          : NVIDIA H100 80GB HBM3",
            "    VBIOS Version                         : 96.00.74.00.01",
            "    MIG Mode",
            "        Current                           : Disabled",
            "    PCI",
            "        Bus                               : 0x18",
            "        GPU Link Info",
            "            Link Width",
            "                Max                       : 16x",
            f"                Current                   : {value('width', gpu, '16x')}",
            "    Clocks Event Reasons",
            "        Idle                              : Active",
            "        HW Slowdown                       : Not Active",
            f"            HW Thermal Slowdown           : {value('hot', gpu, 'Not Active')}",
            "            HW Power Brake Slowdown       : Not Active",
            "    ECC Mode",
            "        Current                           : Enabled",
            "        Pending                           : Enabled",
            "    ECC Errors",
            "        Volatile",
            "            SRAM Correctable              : 0",
            "            SRAM Uncorrectable Parity     : 0",
            "            SRAM Uncorrectable SEC-DED    : 0",
            f"            DRAM Correctable              : {value('correctable', gpu, '0')}",
            f"            DRAM Uncorrectable            : {value('uncorrectable', gpu, '0')}",
            "        Aggregate",
            "            SRAM Correctable              : 0",
            "            DRAM Uncorrectable            : 0",
            "            SRAM Threshold Exceeded       : No",
            "    Retired Pages",
            "        Single Bit ECC                    : N/A",
            "        Pending Page Blacklist            : N/A",
            "    Remapped Rows",
            "        Correctable Error                 : 0",
            "        Uncorrectable Error               : 0",
            f"        Pending                           : {value('pending', gpu, 'No')}",
            f"        Remapping Failure Occurred        : {value('failure', gpu, 'No')}",
            "    Processes                             : None",
        ]
    return "\n".join(lines) + "\n"


def smi_xml(uncorrectable: int = 0) -> str:
    """Return `nvidia-smi -q -x` of one GPU."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
 <timestamp>Sun Mar  1 10:00:00 2026</timestamp>
 <driver_version>550.127.05</driver_version>
 <attached_gpus>1</attached_gpus>
 <gpu id="00000000:18:00.0">
  <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
  <ecc_errors><volatile><sram_correctable>0</sram_correctable><dram_correctable>0</dram_correctable>
   <dram_uncorrectable>{uncorrectable}</dram_uncorrectable></volatile></ecc_errors>
  <remapped_rows><remapped_row_pending>No</remapped_row_pending>
   <remapped_row_failure>No</remapped_row_failure></remapped_rows>
 </gpu>
</nvidia_smi_log>
"""
