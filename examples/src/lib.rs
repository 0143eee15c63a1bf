//! Programs over EXS; each binary of this package is one of them.
