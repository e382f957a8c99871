//! The program put together: server, executor host, HTTP, and the order in which they end (SRV-1401, SS-110).

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use memory_engine::StoreRoot;
use memory_server::{AclConfig, LogCounts, Server, ServerConfig, ServingPlane, Stores};
use tokio::net::TcpListener;

use crate::configuration::Configuration;
use crate::demo::{self, DemoSite};
use crate::host::{ExecutorHost, HostConfig};
use crate::node_key;
use crate::patterns::Patterns;
use crate::statistics::Statistics;

/// A running program.
pub struct Application {
    server: Arc<Server>,
    host: Option<ExecutorHost>,
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
    /// The served example, when there is one.
    pub demo: Option<DemoSite>,
}

impl Application {
    /// Opens the data directory, starts the server and, with server execution on, the host; binds the address. With
    /// `with_demo` the lunch poll is made or found. `log_counts` are what the program's subscriber has logged.
    pub async fn start(
        configuration: &Configuration,
        with_demo: bool,
        log_counts: LogCounts,
    ) -> Result<Application> {
        let knobs = configuration.knobs();
        std::fs::create_dir_all(&knobs.data)
            .with_context(|| format!("creating the data directory {}", knobs.data.display()))?;
        let signer = node_key::load(&configuration.identity, &knobs.data, configuration.development)?;
        let did = signer.did().clone();
        let stores = Stores::Files(StoreRoot::configured(&knobs.data)?);
        let server = Server::new(ServerConfig {
            durability: knobs.durability,
            server_execution: knobs.execution.enabled,
            acl: AclConfig {
                mode: knobs.acl_mode,
                service_principals: knobs.service_principals.clone(),
                delegating_principals: AclConfig::delegating(&did, knobs.execution.enabled),
            },
            git_sha: knobs.git_sha.clone(),
            dumps: configuration.dumps(),
            limits: knobs.limits.clone(),
            rates: knobs.rates,
            log_counts: Some(log_counts),
            ..ServerConfig::new(did.clone(), stores)
        })?;
        let host = if knobs.execution.enabled {
            let statistics = Statistics::default();
            report_statistics(&server, &statistics);
            let config = HostConfig {
                settings: configuration.settings.clone(),
                statistics,
                ..HostConfig::new(Arc::clone(&server), signer, Patterns::built_in())
            };
            Some(ExecutorHost::start(config)?)
        } else {
            None
        };
        let demo = if with_demo {
            Some(demo::provision(&server, &did, &knobs.data).await?)
        } else {
            None
        };
        let mut router = server.router();
        if let Some(site) = &demo {
            router = router.merge(demo::routes(site));
        }
        let listener = TcpListener::bind(configuration.listen())
            .await
            .with_context(|| format!("listening on {}", configuration.listen()))?;
        let address = listener.local_addr()?;
        Ok(Application {
            server,
            host,
            listener,
            address,
            router,
            demo,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `ending` resolves, then ends in order: no new connections, spaces park and release their leases,
    /// queued frames leave, stores are checkpointed.
    pub async fn serve(self, ending: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Application {
            server,
            host,
            listener,
            router,
            ..
        } = self;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let closing = Arc::clone(&server);
        let shutdown = tokio::spawn(async move {
            ending.await;
            tracing::info!("stopping");
            if let Some(host) = host {
                host.close().await;
            }
            // The sender goes only with this task.
            let _ = stop.send(());
            closing.shut_down().await;
        });
        let stopped = async move {
            // An abandoned sender means the shutdown task is gone: stop as well.
            let _ = stopped.await;
        };
        server.serve(listener, router, stopped).await.context("serving")?;
        shutdown.await.context("stopping")?;
        Ok(())
    }
}

/// Lets the server's statistics carry the serving loop's block, with the push counters that the server keeps.
fn report_statistics(server: &Arc<Server>, statistics: &Statistics) {
    let (statistics, plane) = (statistics.clone(), Arc::downgrade(server));
    server.set_serving_loop_report(Some(Arc::new(move || {
        let mut block = statistics.snapshot();
        if let Some(server) = plane.upgrade() {
            let push = server.push_priority_stats();
            block.push.prioritized_sessions = push.prioritized_sessions;
            block.push.follower_sessions = push.follower_sessions;
            block.push.mixed_flushes = push.mixed_flushes;
        }
        serde_json::to_value(block).unwrap_or_default()
    })));
}
