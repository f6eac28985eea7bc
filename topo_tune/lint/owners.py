"""Who reads a name that NCCL does not, and what NVIDIA's guide says about names that it does."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """The reader of a family of names."""

    prefix: str
    who: str
    source: str


OWNERS: tuple[Owner, ...] = (
    Owner(
        "NCCL_FASTRAK_",
        "Google's GPUDirect-TCPXO plugin",
        "GoogleCloudPlatform/container-engine-accelerators: gpudirect-tcpxo/README.md",
    ),
    Owner(
        "NCCL_SHIMNET_",
        "Google's GPUDirect-TCPXO plugin",
        "GoogleCloudPlatform/container-engine-accelerators: gpudirect-tcpxo/README.md",
    ),
    Owner(
        "NCCL_GPUDIRECTTCPX_",
        "Google's GPUDirect-TCPX plugin",
        "GoogleCloudPlatform/container-engine-accelerators: gpudirect-tcpx/nccl-config.yaml",
    ),
    Owner(
        "NCCL_DYNAMIC_CHUNK_SIZE",
        "Google's GPUDirect-TCPX build of NCCL",
        "GoogleCloudPlatform/container-engine-accelerators: gpudirect-tcpx/nccl-config.yaml",
    ),
    Owner(
        "NCCL_TUNER_CONFIG_PATH",
        "Google's tuner plugin",
        "GoogleCloudPlatform/container-engine-accelerators: gpudirect-tcpxo/README.md",
    ),
    Owner("NCCL_TUNER_CONFIG_FILE", "NCCL's example tuner plugin", "NVIDIA/nccl: plugins/tuner/example"),
    Owner("OFI_NCCL_", "the libfabric plugin aws-ofi-nccl", "aws/aws-ofi-nccl: include/nccl_ofi_param.h"),
    Owner("NCCL_IBEXT_", "NVIDIA's RDMA-SHARP plugin", "Mellanox/nccl-rdma-sharp-plugins: src/ib_plugin.c"),
    Owner(
        "NCCL_PLUGIN_P2P", "NVIDIA's RDMA-SHARP plugin", "Mellanox/nccl-rdma-sharp-plugins: src/p2p_plugin.c"
    ),
    Owner(
        "NCCL_SHARP_", "NVIDIA's RDMA-SHARP plugin", "Mellanox/nccl-rdma-sharp-plugins: src/sharp_plugin.c"
    ),
    Owner("NCCL_UCX_", "NVIDIA's RDMA-SHARP plugin", "Mellanox/nccl-rdma-sharp-plugins: src/ucx_plugin.c"),
    Owner("NCCL_INSPECTOR_", "the Inspector profiler plugin", "NVIDIA/nccl: plugins/profiler/inspector"),
    Owner("NCCL_PROFILE_", "NCCL's example profiler plugin", "NVIDIA/nccl: plugins/profiler/example"),
    Owner("NCCL_TESTS_", "nccl-tests", "NVIDIA/nccl-tests: README.md"),
)

PYTORCH_OLD_NAMES: Mapping[str, str] = {
    name: f"TORCH_{name}"
    for name in (
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_AVOID_RECORD_STREAMS",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
        "NCCL_ENABLE_TIMING",
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    )
}
"""Names of PyTorch without the prefix that it asks for now.

Source: pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, which lists most of them beside the new
ones; NCCL_AVOID_RECORD_STREAMS is not read under its old name any more.
"""

FRAMEWORK_NAMES = frozenset({*PYTORCH_OLD_NAMES, "NCCL_TIMEOUT"})
"""What frameworks read, or what people take for such: NCCL has no time limit of its own for a collective."""

BUILD_NAMES = frozenset(
    f"NCCL_{rest}"
    for rest in (
        *("DIR", "HOME", "INCLUDE", "INCLUDE_DIR", "INCLUDE_DIRS", "INCLUDE_PATH", "INSTALL_PATH", "LIB"),
        *(
            "LIBRARIES",
            "LIBRARY",
            "LIBRARY_PATH",
            "LIB_DIR",
            "LIB_PATH",
            "PATH",
            "ROOT",
            "ROOT_DIR",
            "VERSION",
        ),
    )
)
"""Where NCCL lies and which it is: asked by build systems, set by images of CUDA."""

DEBUGGING_ONLY = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
        "NCCL_BUFFSIZE",
        "NCCL_CGA_CLUSTER_SIZE",
        "NCCL_CHECK_MODE",
        "NCCL_CHECK_POINTERS",
        "NCCL_COMM_BLOCKING",
        "NCCL_CUMEM_ENABLE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_DMABUF_ENABLE",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "NCCL_GRAPH_REGISTER",
        "NCCL_GRAPH_STREAM_ORDERING",
        "NCCL_IB_ADAPTIVE_ROUTING",
        "NCCL_IB_AR_THRESHOLD",
        "NCCL_IB_DISABLE",
        "NCCL_IB_ECE_ENABLE",
        "NCCL_IB_MERGE_NICS",
        "NCCL_IB_OOO_RQ",
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IGNORE_COLLNET_MISMATCH",
        "NCCL_IGNORE_NET_MISMATCH",
        "NCCL_IPC_USE_ABSTRACT_SOCKET",
        "NCCL_LAUNCH_MODE",
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "NCCL_LAUNCH_RACE_FATAL",
        "NCCL_LEGACY_CUDA_REGISTER",
        "NCCL_LOCAL_REGISTER",
        "NCCL_MAX_CTAS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MEM_SYNC_DOMAIN",
        "NCCL_MIN_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MNNVL_CLIQUE_ID",
        "NCCL_MNNVL_ENABLE",
        "NCCL_MNNVL_UUID",
        "NCCL_NET_GDR_C2C",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_NET_GDR_READ",
        "NCCL_NET_MERGE_POLICY",
        "NCCL_NET_SHARED_BUFFERS",
        "NCCL_NET_SHARED_COMMS",
        "NCCL_NTHREADS",
        "NCCL_NVB_DISABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DIRECT_DISABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_LL_THRESHOLD",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PXN_LEVEL",
        "NCCL_PROTO",
        "NCCL_PXN_C2C",
        "NCCL_PXN_DISABLE",
        "NCCL_RAS_ADDR",
        "NCCL_RAS_ENABLE",
        "NCCL_RAS_TIMEOUT_FACTOR",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_SET_STACK_SIZE",
        "NCCL_SHM_DISABLE",
        "NCCL_SYM_GIN_KERNELS_ENABLE",
        "NCCL_WIN_ENABLE",
    }
)
"""Live names in the part `Debugging` of NVIDIA's guide: for experiments, and as workarounds while a problem lasts.

Source: NVIDIA/nccl docs/userguide/source/env.rst, read at 2.31; the guide's first paragraph says what may stay set.
"""


def owner_of(name: str) -> Owner | None:
    """The plugin or program that reads this name."""
    return next((owner for owner in OWNERS if name.startswith(owner.prefix)), None)
