{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "borescope.labels" -}}
app.kubernetes.io/name: borescope
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* (dict "root" . "component" "store") */}}
{{- define "borescope.image" -}}
{{ printf "%s/borescope-%s:%s" .root.Values.image.registry .component (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}

{{/* What every pod has. (dict "root" . "values" .Values.store) */}}
{{- define "borescope.pod" -}}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Pod Security "restricted", and a little more. */}}
{{- define "borescope.restrictedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "borescope.restrictedContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The pod's own token, for the store alone; the kubelet renews it. */}}
{{- define "borescope.storeTokenVolume" -}}
- name: store-token
  projected: {sources: [{serviceAccountToken: {path: token, audience: borescope-store, expirationSeconds: 3600}}]}
{{- end }}

{{- define "borescope.storeURL" -}}
http://borescope-store.{{ .Release.Namespace }}.svc:4040
{{- end }}

{{- define "borescope.check" -}}
{{- if eq .Values.sampler.namespace .Release.Namespace }}
{{- fail (printf "sampler.namespace: found %q, the release's own namespace; give another: the sampler needs Pod Security \"privileged\", all else is \"restricted\"" .Values.sampler.namespace) }}
{{- end }}
{{- $names := dict }}
{{- if .Values.store.enabled }}{{ $_ := set $names "default" true }}{{ end }}
{{- range $i, $sink := .Values.sinks }}
{{- if hasKey $names $sink.name }}
{{- fail (printf "sinks[%d].name: found %q a second time%s; names are unique" $i $sink.name (eq $sink.name "default" | ternary " (the store has it)" "")) }}
{{- end }}
{{- $_ := set $names $sink.name true }}
{{- end }}
{{- if not (hasKey $names "default") }}
{{- fail "sinks: no sink has the name \"default\", which sessions without spec.sinks use; name one so, or set store.enabled" }}
{{- end }}
{{- end }}
