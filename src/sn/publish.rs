use clap::Args;
use tenbin_sn_client::{Client, OutgoingMessage, QoS, publish_unconnected};
use tokio::time::timeout;

use super::subscribe::FAREWELL;
use super::{ConnectionArgs, SnError, TopicArgs, qos};

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// Payload.
    #[arg(short, long, value_name = "TEXT")]
    message: String,
    /// QoS: 0, 1 or 2; or -1, one datagram without a connection, which needs -T or -s and a gateway that permits it.
    #[arg(short, long, value_name = "QOS", default_value = "0", allow_negative_numbers = true, value_parser = any_qos)]
    qos: AnyQos,
    /// Has the message retained.
    #[arg(short, long)]
    retain: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Clone, Copy)]
enum AnyQos {
    MinusOne,
    Connected(QoS),
}

pub(super) async fn run(arguments: &PublishArgs) -> Result<(), SnError> {
    let (topic, payload) = (arguments.topic.topic(), arguments.message.clone());
    let qos = match arguments.qos {
        AnyQos::Connected(qos) => qos,
        AnyQos::MinusOne => return publish_once(arguments).await,
    };
    let options = arguments.connection.options()?.reconnect(None);
    let (client, _events) = Client::connect(options).await?;
    let mut message = OutgoingMessage::new(topic.clone(), payload).at(qos);
    message.retain = arguments.retain;
    let done = async { client.publish(message).await?.await }.await;
    done.map_err(|error| SnError::Topic(topic, error))?;
    // The message is published, with or without an answer.
    let _ = timeout(FAREWELL, client.disconnect()).await;
    Ok(())
}

/// Publishes at QoS −1.
async fn publish_once(arguments: &PublishArgs) -> Result<(), SnError> {
    let connection = &arguments.connection;
    for (is_given, option) in [
        (connection.will_topic.is_some(), "--will-topic"),
        (connection.id.is_some(), "--id"),
        (connection.access.is_given(), "credentials and keys"),
        (connection.gateway.len() > 1, "second --gateway"),
    ] {
        if is_given {
            return Err(SnError::NoConnection(option));
        }
    }
    let topic = arguments.topic.topic();
    publish_unconnected(&connection.gateway[0], &topic, arguments.retain, arguments.message.as_bytes())
        .await
        .map_err(SnError::Unconnected)
}

fn any_qos(text: &str) -> Result<AnyQos, String> {
    match text {
        "-1" => Ok(AnyQos::MinusOne),
        _ => qos(text).map(AnyQos::Connected).map_err(|_| "want -1, 0, 1 or 2".to_owned()),
    }
}
