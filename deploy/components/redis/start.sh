#!/bin/sh
# Start a Redis or a Sentinel of this group: start.sh redis|sentinel. Nothing is kept: all configuration is made here.
# start.sh add-password gives the servers' user of this pod a further password, read from a line of its input.
#
# NAME is this pod's name in DNS and BIND its address; PEERS are the names of all pods, the first of which is the master of a
# new group. SECRETS holds password, admin-password and sentinel-password; TLS a certificate (tls.crt, tls.key) and its
# authority (ca.crt); DATA is an empty folder.
set -eu

password() { cat "$SECRETS/$1"; }

ask() { # ask HOST PORT PASSWORD-FILE COMMAND...
    host=$1 port=$2 secret=$3
    shift 3
    REDISCLI_AUTH="$(password "$secret")" timeout 2 redis-cli -h "$host" -p "$port" -e \
        --tls --cacert "$TLS/ca.crt" "$@" 2>/dev/null
}

# The master that a Sentinel names. Without any Sentinel the group is new.
find_master() {
    for peer in $PEERS; do
        if found="$(ask "$peer" 26379 sentinel-password SENTINEL GET-MASTER-ADDR-BY-NAME mymaster)" && [ -n "$found" ]; then
            echo "$found" | head -n 1
            return
        fi
    done
    echo "${PEERS%% *}"
}

listen() { # listen PORT
    echo "bind $BIND"
    echo "dir $DATA"
    # Clients prove who they are by passwords, so they need no certificate.
    echo "port 0"
    echo "tls-port $1"
    echo "tls-cert-file $TLS/tls.crt"
    echo "tls-key-file $TLS/tls.key"
    echo "tls-ca-cert-file $TLS/ca.crt"
    echo "tls-auth-clients no"
    echo "tls-replication yes"
}

redis_config() { # redis_config MASTER
    listen 6379
    echo 'save ""'
    echo "appendonly no"
    # The container may use 512 MiB.
    echo "maxmemory 400mb"
    echo "maxmemory-policy allkeys-lru"
    # A replica reads the master's keys from the connection: DATA is too small for a copy of them. One that has keys holds
    # both meanwhile; if its memory is too small for that, its container starts again, without any.
    echo "repl-diskless-load swapdb"
    echo "replica-announce-ip $NAME"
    echo "masteruser default"
    echo "masterauth $(password admin-password)"
    echo "user default on >$(password admin-password) ~* &* +@all"
    # What a server may do: docs/replicas.md.
    echo "user completion on >$(password password) ~completion:* &completion:* +get +set +spublish +ssubscribe" \
        "+sunsubscribe +ping +incrby +expire"
    [ "$1" = "$NAME" ] || echo "replicaof $1 6379"
}

sentinel_config() { # sentinel_config MASTER
    listen 26379
    echo "requirepass $(password sentinel-password)"
    echo "sentinel sentinel-pass $(password sentinel-password)"
    # Pods have new addresses after a restart, and keep their names.
    echo "sentinel resolve-hostnames yes"
    echo "sentinel announce-hostnames yes"
    echo "sentinel announce-ip $NAME"
    echo "sentinel monitor mymaster $1 6379 2"
    echo "sentinel auth-user mymaster default"
    echo "sentinel auth-pass mymaster $(password admin-password)"
    # Servers go on without Redis, so a failover need not be quick; a pod that is only restarted is back within 5 s.
    echo "sentinel down-after-milliseconds mymaster ${DOWN_AFTER_MS:-5000}"
    echo "sentinel failover-timeout mymaster 15000"
}

# Take a renewed certificate: Redis reads it anew when it is told to, a Sentinel when its container starts again.
renew() { # renew redis|sentinel
    seen="$(cat "$TLS/tls.crt")"
    while sleep "${RENEW_S:-60}" && kill -0 "$$"; do
        [ "$(cat "$TLS/tls.crt")" != "$seen" ] || continue
        if [ "$1" = sentinel ]; then
            kill "$$"
        elif ask "$BIND" 6379 admin-password CONFIG SET tls-ca-cert-file "$TLS/ca.crt" \
            tls-cert-file "$TLS/tls.crt" tls-key-file "$TLS/tls.key" >/dev/null; then
            seen="$(cat "$TLS/tls.crt")"
        fi
    done
}

umask 077
[ "$1" = add-password ] || renew "$1" &
case "$1" in
redis)
    redis_config "$(find_master)" >"$DATA/redis.conf"
    exec redis-server "$DATA/redis.conf"
    ;;
sentinel)
    # A Sentinel does not start before its master's name can be resolved. Another one may be master by then.
    until master="$(find_master)" && ask "$master" 6379 admin-password PING >/dev/null; do
        echo "waiting for the master $master"
        sleep 1
    done
    sentinel_config "$master" >"$DATA/sentinel.conf"
    exec redis-server "$DATA/sentinel.conf" --sentinel
    ;;
add-password)
    read -r new
    ask "$BIND" 6379 admin-password ACL SETUSER completion ">$new"
    ;;
*)
    echo "usage: start.sh redis|sentinel|add-password" >&2
    exit 2
    ;;
esac
