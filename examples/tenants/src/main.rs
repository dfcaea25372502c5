//! A broker with the plugin.
//!
//! ```text
//! cargo run -p tenbin-tenants
//! mosquitto_pub -q 1 -t acme/orders -m 1
//! mosquitto_sub -v -t 'tenants/#'
//! ```

use tenbin_broker::{Broker, Config};
use tenbin_tenants::Tenants;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("listen = ['127.0.0.1:1883']\n[sys]\ninterval_seconds = 1\n")?;
    let broker = Broker::builder().config(config).hooks(Tenants::default()).start().await?;
    Ok(broker.run_until(tokio::signal::ctrl_c()).await?)
}
