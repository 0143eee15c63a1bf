//! `--transport` and `--device`, as all the programs take them.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use exs::{Options, Transport};

/// The transport and the device, as the user chooses them.
#[derive(Args, Clone, Debug, Default)]
pub struct Road {
    /// Which transport to use: all that there are in turn, the software RNIC, shared
    /// memory or RDMA devices only [default: the variable EXS_TRANSPORT, else auto]
    #[arg(long, value_name = "NAME", value_parser = transports())]
    pub transport: Option<Transport>,
    /// Of the RDMA devices, use this one only, for example rxe0 [default: EXS_DEVICE]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
}

impl Road {
    /// The options of sockets, from the environment and then from the command line.
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        if let Some(transport) = self.transport {
            options.transport = transport;
        }
        if self.device.is_some() {
            options.device.clone_from(&self.device);
        }
        options
    }

    /// The same again, for a program that is started with it.
    pub fn args(&self) -> Vec<String> {
        let transport = self.transport.map(|t| format!("--transport={t}"));
        let device = self.device.as_ref().map(|d| format!("--device={d}"));
        transport.into_iter().chain(device).collect()
    }
}

/// The transports that EXS knows, by name.
pub const NAMES: [&str; 4] = ["auto", "soft", "shm", "verbs"];

fn transports() -> impl TypedValueParser<Value = Transport> {
    PossibleValuesParser::new(NAMES).try_map(|name| name.parse::<Transport>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        road: Road,
    }

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        let all = std::iter::once(&"program").chain(args);
        <Program as clap::Parser>::try_parse_from(all).map(|p| p.road.options())
    }

    #[test]
    fn the_command_line_goes_before_the_environment() {
        assert_eq!(parse(&[]).unwrap(), Options::default());
        let options = parse(&["--transport", "verbs", "--device", "rxe0"]).unwrap();
        assert_eq!(options.transport, Transport::Verbs);
        assert_eq!(options.device.as_deref(), Some("rxe0"));
        let road = Road { transport: Some(options.transport), device: options.device };
        assert_eq!(road.args(), ["--transport=verbs", "--device=rxe0"]);
        let error = parse(&["--transport", "infiniband"]).unwrap_err().to_string();
        assert!(error.contains("auto, soft, shm, verbs"), "{error}");
    }
}
