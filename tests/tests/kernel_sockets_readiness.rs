//! Kernel sockets without io_uring, as on kernels that lack it or forbid it.

exs_tests::kernel_contract!(exs::plain::KernelIo::Readiness);
