{{/* The name of most objects. Kubernetes allows 63 characters; 52 leave room for suffixes. */}}
{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "penstock" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-penstock" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Valkey has another name than Penstock, so that no selector of Penstock matches it. */}}
{{- define "penstock.valkeySelector" -}}
app.kubernetes.io/name: penstock-valkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.valkeyLabels" -}}
{{ include "penstock.valkeySelector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{- .Values.serviceAccount.existingName | default (include "penstock.fullname" .) -}}
{{- end -}}

{{- define "penstock.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The smallest number of instances. */}}
{{- define "penstock.instances" -}}
{{- if .Values.autoscaling.enabled }}{{ int .Values.autoscaling.minReplicas }}{{ else }}{{ int .Values.replicas }}{{ end -}}
{{- end -}}

{{/* The name of the ConfigMap with the policy; empty: there is no policy. */}}
{{- define "penstock.policyMap" -}}
{{- if .Values.policy.existingConfigMap }}{{ .Values.policy.existingConfigMap }}{{ else if .Values.policy.text }}{{ include "penstock.fullname" . }}-policy{{ end -}}
{{- end -}}

{{/* The name of the ConfigMap with the files for Envoy; empty: there are none. */}}
{{- define "penstock.envoyMap" -}}
{{- if .Values.envoy.existingConfigMap }}{{ .Values.envoy.existingConfigMap }}{{ else if .Values.envoy.files }}{{ include "penstock.fullname" . }}-envoy{{ end -}}
{{- end -}}

{{/* The mounted secrets, as JSON: the file, the Secret and its key, and the variable with the path of the file. */}}
{{- define "penstock.secrets" -}}
{{- $list := list -}}
{{- if .Values.valkey.enabled -}}
{{- $list = append $list (dict "file" "valkey-password" "secret" .Values.valkey.existingSecret "key" "password" "env" "") -}}
{{- else if .Values.store.existingSecret -}}
{{- $list = append $list (dict "file" "store" "secret" .Values.store.existingSecret "key" .Values.store.key "env" "PENSTOCK_STORE_FILE") -}}
{{- end -}}
{{- with .Values.callerToken }}{{ if .existingSecret }}
{{- $list = append $list (dict "file" "caller-token" "secret" .existingSecret "key" .key "env" "PENSTOCK_CALLER_TOKEN_FILE") -}}
{{- end }}{{ end -}}
{{- with .Values.operatorToken }}{{ if .existingSecret }}
{{- $list = append $list (dict "file" "operator-token" "secret" .existingSecret "key" .key "env" "PENSTOCK_OPERATOR_TOKEN_FILE") -}}
{{- end }}{{ end -}}
{{- with .Values.keyHashSecret }}{{ if .existingSecret }}
{{- $list = append $list (dict "file" "key-hash-secret" "secret" .existingSecret "key" .key "env" "PENSTOCK_KEY_HASH_SECRET_FILE") -}}
{{- end }}{{ end -}}
{{- toJson $list -}}
{{- end -}}

{{/* Formats a value. Numbers in values are floats, and must not become 1e+06. */}}
{{- define "penstock.scalar" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* GOMEMLIMIT: nine tenths of the memory limit in MiB, if it is written in Mi or Gi; otherwise empty. */}}
{{- define "penstock.memory" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- if regexMatch "^[0-9]+Mi$" $limit }}{{ div (mul (trimSuffix "Mi" $limit | int64) 9) 10 }}MiB
{{- else if regexMatch "^[0-9]+Gi$" $limit }}{{ div (mul (trimSuffix "Gi" $limit | int64) 9216) 10 }}MiB
{{- end -}}
{{- end -}}

{{/* Fails if the values have mistakes that the schema cannot detect. */}}
{{- define "penstock.check" -}}
{{- $l := .Values.listeners -}}
{{- if not (or $l.proxy.enabled $l.api.enabled $l.grpc.enabled $l.resp.enabled) -}}
{{- fail "listeners: none is enabled; enable proxy, api, grpc or resp" -}}
{{- end -}}
{{- if and $l.proxy.enabled (not .Values.settings.upstream) -}}
{{- fail "listeners.proxy needs settings.upstream; write a URL such as http://my-app:3000" -}}
{{- end -}}
{{- if and .Values.settings.upstream (not $l.proxy.enabled) -}}
{{- fail "settings.upstream needs listeners.proxy; write listeners.proxy.enabled: true" -}}
{{- end -}}
{{- $ports := list (int .Values.admin.port) -}}
{{- range $name, $listener := $l -}}
{{- if $listener.enabled -}}
{{- if has (int $listener.port) $ports -}}
{{- fail (printf "listeners.%s.port: %d is used twice; write another port" $name (int $listener.port)) -}}
{{- end -}}
{{- $ports = append $ports (int $listener.port) -}}
{{- end -}}
{{- end -}}
{{- $hasPolicy := include "penstock.policyMap" . -}}
{{- $hasEnvoy := or (include "penstock.envoyMap" .) .Values.settings.envoy_xds -}}
{{- if and (not $hasPolicy) (or $l.proxy.enabled (and (or $l.api.enabled $l.grpc.enabled) (not $hasEnvoy))) -}}
{{- fail "policy: there is none; write policy.text or policy.existingConfigMap" -}}
{{- end -}}
{{- $callers := or .Values.callerToken.existingSecret .Values.settings.caller_client_ca (eq (toString .Values.settings.allow_open_callers) "true") -}}
{{- if and (or $l.grpc.enabled $l.resp.enabled) (not $callers) -}}
{{- fail "listeners.grpc and listeners.resp need callerToken.existingSecret, settings.caller_client_ca, or settings.allow_open_callers: true if the network protects them" -}}
{{- end -}}
{{- if and .Values.valkey.enabled (not .Values.valkey.existingSecret) -}}
{{- fail "valkey.existingSecret: name a Secret with a password; kubectl create secret generic penstock-valkey --from-literal=password=$(openssl rand -hex 24)" -}}
{{- end -}}
{{- $most := ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled | int -}}
{{- if and (gt $most 1) (not (or .Values.valkey.enabled .Values.store.existingSecret)) -}}
{{- fail (printf "store: %d instances need one in common; name a Secret in store.existingSecret, or write valkey.enabled: true, or replicas: 1" $most) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- end -}}
