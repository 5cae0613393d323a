{{/* Labels that select our pods; the argument: component. */}}
{{- define "rollwright.selector" -}}
app.kubernetes.io/name: rollwright
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of an object; the argument: a list of the context and the component. */}}
{{- define "rollwright.labels" -}}
{{- $context := index . 0 -}}
{{ include "rollwright.selector" (index . 1) }}
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ $context.Chart.Name }}-{{ $context.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image reference; the argument: a list of the image's values and the default tag. */}}
{{- define "rollwright.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end }}

{{/* Name of the Secret with the metrics token. */}}
{{- define "rollwright.metricsSecret" -}}
{{ .Values.metrics.existingSecret | default "rollwright-metrics" }}
{{- end }}

{{/* Name of the agents' priority class, or nothing. */}}
{{- define "rollwright.agentPriorityClass" -}}
{{- with .Values.agent.priorityClass -}}
{{- if .create }}rollwright-agent{{ else }}{{ .name }}{{ end -}}
{{- end -}}
{{- end }}

{{/* What the containers of the agents' pods ask for: a list of MODE:CPU:MEMORY. */}}
{{- define "rollwright.agentRequests" -}}
{{- $agent := .Values.agent -}}
{{- $all := list -}}
{{- if $agent.host.enabled }}{{ $all = append $all (list "host" $agent.resources) }}{{ end -}}
{{- if $agent.dind.enabled -}}
{{- $all = concat $all (list (list "dind" $agent.resources) (list "dind" $agent.dind.resources)) -}}
{{- end -}}
{{- if $agent.gpu.enabled }}{{ $all = append $all (list "gpu" $agent.gpu.resources) }}{{ end -}}
{{- range $all }}
{{- $limits := (index . 1).limits | default dict }}
{{- $requests := merge dict ((index . 1).requests | default dict) $limits }}
- {{ printf "%s:%v:%v" (index . 0) ($requests.cpu | default "0") ($requests.memory | default "0") | quote }}
{{- end }}
{{- end }}

{{/* Name of the reservations' priority class, or nothing. */}}
{{- define "rollwright.reservationPriorityClass" -}}
{{- with .Values.controllers.reservationPriorityClass -}}
{{- if .create }}rollwright-reservation{{ else }}{{ .name }}{{ end -}}
{{- end -}}
{{- end }}

{{/* How every pod of ours but the agent's is confined. */}}
{{- define "rollwright.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
