//! Reloads at an unusual time.

use std::sync::{Arc, Mutex};

use crate::broker::ReloadError;
use crate::{Broker, Config};

#[tokio::test]
async fn reload_of_a_stopping_broker_opens_no_socket() {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config.clone()).start().await.unwrap();
    // As at the end of a look-up during which the broker has begun to stop.
    broker.parts.shared.operations.stopping.send_replace(true);
    let closing = broker.parts.listeners().close();
    closing.await;
    assert!(matches!(broker.reload(&config), Err(ReloadError::Stopping)));
    assert!(broker.addresses().is_empty());
}

#[tokio::test]
async fn program_learns_how_each_reload_ends() {
    let rule = "[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";
    let config = |rules: &str| Config::parse(&format!("listen = [\"127.0.0.1:0\"]\n{rules}")).unwrap();
    let told = Arc::<Mutex<Vec<Result<usize, String>>>>::default();
    let learn = {
        let told = Arc::clone(&told);
        move |ended: Result<&Config, &ReloadError>| {
            told.lock().unwrap().push(ended.map(|config| config.acl.len()).map_err(ToString::to_string));
        }
    };
    let broker = Broker::builder().config(config("")).on_reload(learn).start().await.unwrap();
    broker.reload(&config(rule)).unwrap();
    broker.handle.reload(&config(&rule.repeat(2))).unwrap();
    broker.reload(&config("")).unwrap_err();
    let told = told.lock().unwrap();
    assert_eq!(told[..2], [Ok(1), Ok(2)]);
    assert!(told.len() == 3 && told[2].as_ref().is_err_and(|error| error.contains("acl: no rule is left")), "{told:?}");
}
