//! Publishes a few events through the client module, as a service would: several
//! callers share one publisher and each awaits its own receipt.
//!
//! ```sh
//! cargo run --example publish -- http://127.0.0.1:7601
//! ```

use counterfoil::{
    client::{PublishError, Publisher},
    proto::pb::{NewEvent, new_event::Data},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:7601".to_owned());
    let publisher = Publisher::connect(url.as_str())?;

    let callers = ["camera", "lens", "tripod"].map(|item| {
        let publisher = publisher.clone();
        tokio::spawn(async move { adjust(&publisher, item, 3).await })
    });
    for caller in callers {
        println!("{}", caller.await??);
    }
    Ok(())
}

/// One business event. In a service, the key is made with the intent and stored
/// beside it, so that a later attempt carries the same one.
async fn adjust(publisher: &Publisher, item: &str, delta: i64) -> Result<String, PublishError> {
    let event = NewEvent {
        key: uuid::Uuid::now_v7().to_string(),
        r#type: "stock.adjusted".to_owned(),
        subject: item.to_owned(),
        data: Some(Data::JsonText(format!(r#"{{"delta":{delta}}}"#))),
        ..NewEvent::default()
    };
    let receipt = publisher.publish(event).await?;
    Ok(format!("{item}: accepted at sequence {}", receipt.sequence()))
}
