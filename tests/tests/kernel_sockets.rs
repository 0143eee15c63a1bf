//! Kernel sockets, with io_uring for what has no form that does not wait.

exs_tests::kernel_contract!(exs::plain::KernelIo::Uring);
