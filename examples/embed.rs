//! A broker inside this program, with a hook that prints each message. It ends with Ctrl-C.
//!
//! ```text
//! cargo run --example embed
//! ```
#![allow(clippy::print_stdout, reason = "shows what the hook sees")]

use tenbin_broker::{Broker, Client, Config, Events, Hooks, Message, Publication, Verdict};

struct Audit;

impl Hooks for Audit {
    fn wants(&self) -> Events {
        Events::PUBLISH
    }

    fn publish(&self, who: &Client, message: &mut Publication) -> Verdict {
        println!("{}: {}", who.id(), message.topic);
        Verdict::Go
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = Broker::builder().config(Config::parse("listen = ['127.0.0.1:1883']")?).hooks(Audit).start().await?;
    broker.handle().publish(Message::new("greeting", "hello")?).await?;
    Ok(broker.run_until(tokio::signal::ctrl_c()).await?)
}
