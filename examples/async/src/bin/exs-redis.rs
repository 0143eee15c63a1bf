//! Redis over EXS, by redis-rs: `exs-redis HOST:PORT [COMMAND ARGUMENT...]`.
//!
//! The server speaks EXS: `exs-redis serve ADDRESS` is a small one, and a proxy makes one of any server:
//!
//!     exs-proxy exs:0.0.0.0:6380 127.0.0.1:6379
//!     exs-redis server.example:6380 SET greeting hello

use std::error::Error;

use exs::aio::{AsyncListener, AsyncStream};
use exs_async_examples::resp::Database;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, Value};

async fn ask(host: &str, command: &[String]) -> Result<Value, Box<dyn Error>> {
    let stream = AsyncStream::connect(host).await?;
    let (info, config) = (RedisConnectionInfo::default(), AsyncConnectionConfig::default());
    let (mut client, connection) =
        MultiplexedConnection::new_with_config(&info, stream, config).await?;
    tokio::spawn(connection);
    let mut ask = redis::Cmd::new();
    match command {
        [] => _ = ask.arg("PING"),
        words => _ = ask.arg(words),
    }
    Ok(ask.query_async(&mut client).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [serve, addr] if serve == "serve" => {
            let listener = AsyncListener::bind(addr.parse()?)?;
            println!("listening at {}", listener.local_addr()?);
            Ok(Database::default().serve(listener).await?)
        }
        [host, command @ ..] if host != "serve" => {
            println!("{:?}", ask(host, command).await?);
            Ok(())
        }
        _ => Err("usage: exs-redis HOST:PORT [COMMAND...], or exs-redis serve ADDRESS".into()),
    }
}
