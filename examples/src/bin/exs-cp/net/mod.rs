pub(crate) type NetError = std::io::Error;
