//! One gRPC server: limits, keepalive, health, reflection, and an orderly end.

use std::{io::Write as _, net::SocketAddr};

use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::{Routes, RoutesBuilder},
    transport::Server,
};
use tonic_health::{ServingStatus, server::HealthReporter};

use super::{Failure, connections};
use crate::proto::{self, limits::*};

/// What a process serves.
pub struct Service {
    /// The gRPC services of this process, without health and reflection.
    pub routes: RoutesBuilder,
    /// Their full names, such as `counterfoil.v1.PublisherService`.
    pub names: &'static [&'static str],
    /// Whether the service works, over time. `false` turns health to NOT_SERVING.
    pub healthy: tokio::sync::watch::Receiver<bool>,
    /// Cancelled by [`serve`] when the process is told to end: streams have to
    /// end themselves with SHUTTING_DOWN, or the server would wait for them.
    pub ending: CancellationToken,
}

/// Serves until SIGTERM or SIGINT, or until `service.ending` is cancelled from
/// inside, then drains for a bounded time. Prints `listening on ADDR` on
/// standard output once ready.
///
/// # Errors
/// [`Failure::Runtime`] when the server itself fails.
pub async fn serve(listener: TcpListener, service: Service) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(runtime)?;
    let told = async {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("told to end (SIGTERM)"),
            _ = interrupt.recv() => tracing::info!("told to end (SIGINT)"),
        }
    };
    serve_until(listener, service, told, announce).await
}

/// Serves until it is told to end, or until `service.ending` is cancelled from inside, then
/// drains for a bounded time. `ready` gets the address once it is served.
///
/// # Errors
/// [`Failure::Runtime`] when the server itself fails; that of `ready`.
pub async fn serve_until(
    listener: TcpListener,
    service: Service,
    told: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let address = listener.local_addr().map_err(runtime)?;
    connections::allow_descriptors(MAX_CONNECTIONS);
    let Service { routes, names, healthy, ending } = service;
    let (health, health_service) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(health, names, healthy, ending.clone()));
    let mut routes = routes;
    routes.add_service(health_service);
    add_reflection(&mut routes, names)?;
    let routes: Routes = routes.routes();

    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(Some(MAX_CONCURRENT_STREAMS))
        .initial_stream_window_size(Some(STREAM_WINDOW_BYTES))
        .initial_connection_window_size(Some(CONNECTION_WINDOW_BYTES))
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAM_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_STREAM_RESETS))
        .http2_max_header_list_size(Some(MAX_HEADER_LIST_BYTES))
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            connections::accept(listener, MAX_CONNECTIONS),
            ending.clone().cancelled_owned(),
        );
    let mut server = tokio::spawn(server);

    ready(address)?;
    tokio::select! {
        ended = &mut server => return flatten(ended),
        () = told => {}
        () = ending.cancelled() => {}
    }
    ending.cancel();
    match tokio::time::timeout(DRAIN, &mut server).await {
        Ok(ended) => flatten(ended)?,
        Err(_) => {
            tracing::warn!("callers still connected after {DRAIN:?}; ending without them");
            server.abort();
        }
    }
    Ok(())
}

/// The line that scripts wait for.
fn announce(address: SocketAddr) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {address}").and_then(|()| out.flush()).map_err(runtime)
}

fn add_reflection(routes: &mut RoutesBuilder, names: &[&str]) -> Result<(), Failure> {
    use tonic_reflection::{pb, server::Builder};
    let shown = names.iter().copied().chain([
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]);
    // The google.rpc types too: without them a generic client prints error details as base64.
    let builder = || {
        let builder = Builder::configure()
            .include_reflection_service(false)
            .register_encoded_file_descriptor_set(proto::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(pb::v1alpha::FILE_DESCRIPTOR_SET);
        shown.clone().fold(builder, Builder::with_service_name)
    };
    routes.add_service(builder().build_v1().map_err(runtime)?);
    routes.add_service(builder().build_v1alpha().map_err(runtime)?);
    Ok(())
}

async fn report_health(
    health: HealthReporter,
    names: &'static [&'static str],
    mut healthy: tokio::sync::watch::Receiver<bool>,
    ending: CancellationToken,
) {
    loop {
        let serving = *healthy.borrow_and_update() && !ending.is_cancelled();
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        // The empty name stands for the process as a whole.
        for name in names.iter().chain(&[""]) {
            health.set_service_status(*name, status).await;
        }
        if ending.is_cancelled() {
            // Ends the streams of those who watch; the last thing they see is NOT_SERVING.
            for name in names.iter().chain(&[""]) {
                let mut health = health.clone();
                health.clear_service_status(name).await;
            }
            return;
        }
        tokio::select! {
            changed = healthy.changed() => if changed.is_err() { return },
            () = ending.cancelled() => {}
        }
    }
}

fn flatten(
    ended: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), Failure> {
    ended.map_err(runtime)?.map_err(runtime)
}

fn runtime(error: impl std::fmt::Display) -> Failure {
    Failure::Runtime(format!("the server failed: {error}"))
}

/// Binds an address.
///
/// # Errors
/// [`Failure::Runtime`] if it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::Runtime(format!("cannot listen on {address}: {error}")))
}
