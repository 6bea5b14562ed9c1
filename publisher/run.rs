//! A publisher from its start to its end: open, serve, drain.

use std::time::Duration;

use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use tonic::service::{LayerExt as _, RoutesBuilder};
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};

use super::{
    admin::Admin,
    config::Settings,
    data_dir::DataDir,
    edge::Edge,
    hub::{Hub, Threads},
    service::Service,
    snapshots,
};
use crate::{
    process::{self, Failure},
    proto::{
        limits::{MAX_CALLS, MAX_MESSAGE_BYTES},
        pb::{
            publisher_admin_service_server::PublisherAdminServiceServer,
            snapshot_service_server::SnapshotServiceServer,
        },
    },
};

/// The threads get this long to end after the last call has.
const THREADS_END: Duration = Duration::from_millis(500);

/// Serves the configured logs until the process is told to end.
///
/// # Errors
/// [`Failure`] with one sentence.
pub async fn run(settings: Settings, listener: TcpListener) -> Result<(), Failure> {
    let dir = DataDir::open(&settings.data_dir)?;
    let (healthy_sender, healthy) = watch::channel(true);
    let ending = CancellationToken::new();
    let (hub, threads) = Hub::open(&dir, &settings.logs, &healthy_sender, &ending)?;
    let mut routes = RoutesBuilder::default();
    let service = Edge::new(Service::new(hub.clone(), ending.clone()));
    let snapshots =
        SnapshotServiceServer::new(snapshots::service::Service::new(hub.clone(), ending.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let admin = PublisherAdminServiceServer::new(Admin::new(hub));
    // Bounds the memory of calls that wait: beyond it they are not even decoded.
    // Open streams are bounded by themselves.
    let calls = GlobalConcurrencyLimitLayer::new(MAX_CALLS);
    routes.add_service(ServiceBuilder::new().layer(calls.clone()).named_layer(service));
    routes.add_service(ServiceBuilder::new().layer(calls.clone()).named_layer(snapshots));
    routes.add_service(ServiceBuilder::new().layer(calls).named_layer(admin));
    let names = &[
        "counterfoil.v1.PublisherService",
        "counterfoil.v1.PublisherAdminService",
        "counterfoil.v1.SnapshotService",
    ];
    process::serve(listener, process::Service { routes, names, healthy, ending }).await?;
    join(threads).await;
    Ok(())
}

/// Waits for what is being written. The directory stays locked meanwhile.
async fn join(threads: Vec<Threads>) {
    let join = tokio::task::spawn_blocking(|| {
        for thread in threads.into_iter().flatten() {
            if thread.join().is_err() {
                tracing::error!("a thread has failed");
            }
        }
    });
    if tokio::time::timeout(THREADS_END, join).await.is_err() {
        tracing::warn!("ending although a caller still holds a log");
    }
}
