# The scheduler's commands and nothing of yours: mount the folder of your job modules at /app, or build on top of it.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE leasework.py ./
COPY migrations ./migrations
COPY scheduler ./scheduler
COPY worker ./worker
RUN python -m venv /opt/leasework && /opt/leasework/bin/pip install --no-cache-dir .

FROM python:3.13-slim
COPY --from=build /opt/leasework /opt/leasework
ENV PATH=/opt/leasework/bin:$PATH PYTHONUNBUFFERED=1 SCHEDULER_HTTP=127.0.0.1:9420
WORKDIR /app
USER 10001:10001
# For an outage of the database too it says unhealthy: what restarts a container for that gains nothing, see docs/deploy.md.
HEALTHCHECK --interval=30s --timeout=10s --start-period=15s --retries=3 CMD ["scheduler", "health"]
# Exec form: SIGTERM reaches the worker itself, which then lets its jobs finish.
CMD ["scheduler-worker"]
