#!/bin/sh
# Makes what locks the cluster of compose.yaml, which runs this before the nodes. What exists and fits stays as it is.
#
#   sh deploy/setup.sh ACCESS CLIENT
#
# ACCESS is for the containers. Every node reads ca.crt, tokens and its own certificate and key; Prometheus reads its
# token, Grafana its password, and no container reads ca.key. A container may read what is of a group it is added to.
# CLIENT is for you: ca.crt, a token of the role admin, Prometheus' token and Grafana's password, owned by the folder's
# owner. If a file is lost, run this again: a lost token is revoked, and another one made.
set -eu
access=${1:?the folder of the nodes} client=${2:?the folder of the clients}
cd "$access"
umask 077
chmod 755 .

give() { # GROUP FILE: let a group read a file.
    chgrp "$1" "$2"
    chmod 640 "$2"
}

hand() { # FILE: put a new file of the client in its place, as the folder's owner's.
    chown --reference="$client" "$client/$1.new"
    mv -f "$client/$1.new" "$client/$1"
}

copy() { # FILE: give the client a copy.
    if ! cmp -s "$1" "$client/$1"; then
        cp "$1" "$client/$1.new"
        hand "$1"
    fi
}

is_known() { # NAME FILE: whether the file holds the token of that name.
    [ -s "$2" ] && grep -qs "^$1:$(tr -d '\n' <"$2" | sha256sum | cut -c 1-64):" tokens
}

new_token() { # NAME ROLE FILE: make a token, in place of a former one whose text is lost.
    if grep -qs "^$1:" tokens; then quire token revoke "$1" --file tokens; fi
    said=$(quire token new "$1" --role "$2" --file tokens 2>&1 >"$3") || { echo "$said" >&2 && exit 1; }
}

if ! [ -s ca.crt ]; then
    rm -f ca.key # Of a run that was interrupted: it has signed nothing.
    quire certs init . --cluster compose >/dev/null
fi
for number in 1 2 3 4; do
    [ -s "n$number.crt" ] || quire certs node . "n$number" --host localhost --host 127.0.0.1 >/dev/null
    give "1001$number" "n$number.key"
done

if ! is_known admin "$client/admin.token"; then
    new_token admin admin "$client/admin.token.new"
    hand admin.token
fi
if ! is_known prometheus prometheus.token; then
    new_token prometheus read prometheus.token
fi
if ! [ -s grafana.password ]; then
    head -c 24 /dev/urandom | base64 >grafana.password
fi
give 10001 tokens
give 10021 prometheus.token
give 10022 grafana.password
for file in ca.crt prometheus.token grafana.password; do copy "$file"; done
echo "setup: certificates, tokens and passwords are in place"
